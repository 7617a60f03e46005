# prelude: collectives

def share(value, rank, fast):
    if rank == 0:
        if fast:
            dist.broadcast_object_list([value], 0)
        else:
            print("slow")
            dist.broadcast_object_list([value, None], 0)
    else:
        received = [None]
        dist.broadcast_object_list(received, 0)
