# prelude: collectives


def both_branches_broadcast_on_every_way_through_them(value, rank, fast):
    if rank == 0:
        if fast:
            dist.broadcast_object_list([value], 0)
        else:
            print("slow")
            dist.broadcast_object_list([value, None], 0)
    else:
        received = [None]
        dist.broadcast_object_list(received, 0)


def a_function_that_only_one_rank_defines_and_the_others_match(trials, rank):
    if rank == 0:

        def objective(trial):
            dist.broadcast_object_list([trial], 0)

        optimise(objective, trials)
    else:
        for _ in range(trials):
            dist.broadcast_object_list([None], 0)


def serve(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
        dist.broadcast(torch.zeros(3), 0)
    else:
        while True:
            dist.broadcast(value, 0)
            run(value)


def receive_for_ever(value):
    while True:
        dist.broadcast(value, 0)


def serve_through_a_function(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
        dist.broadcast(torch.zeros(3), 0)
        return
    receive_for_ever(value)


def only_the_first_gets_past_an_assertion(path):
    if dist.get_rank() != 0:
        dist.barrier()
    if path.exists():
        data = path.read()
        if dist.get_rank() == 0:
            dist.barrier()
    else:
        assert dist.get_rank() == 0, "only the first prepares the data"
        data = prepare()
        dist.barrier()
    return data


def share_from_the_first(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
    else:
        take(value)


def take(value):
    receive(value)


def receive(value):
    dist.broadcast(value, 0)


def the_others_wait_for_the_first(local_rank):
    if local_rank not in [-1, 0]:
        dist.barrier()
    data = read()
    if local_rank == 0:
        dist.barrier()
    return data


def the_first_writes(rank):
    if rank != 0:
        dist.barrier()
        return read()
    write()
    dist.barrier()
    return read()


def wait_for_the_others(rank):
    data = read()
    if rank == 0:
        dist.barrier()
    return data


def the_others_wait_in_a_function(rank):
    if rank != 0:
        dist.barrier()
    return wait_for_the_others(rank)


def the_others_wait_in_code_of_elsewhere(model, server):
    if dist.get_rank() == 0:
        server.the_others_wait_in_code_of_elsewhere()
        dist.broadcast(torch.tensor([1]), src=0)
    elif dist.get_rank() > 0:
        model.work_for_rank_0()


def work(model):
    while True:
        model.wait_for_input()


def through_a_function(model, rank):
    if rank != 0:
        work(model)
        return
    dist.broadcast(torch.tensor([1]), src=0)


class FirstRank:
    def __enter__(self):
        self.first = int(os.environ["LOCAL_RANK"]) == 0
        if not self.first:
            dist.barrier()

    def __exit__(self, *error):
        if self.first and dist.is_initialized():
            dist.barrier()
