# prelude: collectives

def search(trials, rank):
    if rank == 0:

        def objective(trial):
            dist.broadcast_object_list([trial], 0)

        optimise(objective, trials)
    else:
        for _ in range(trials):
            dist.broadcast_object_list([None], 0)
