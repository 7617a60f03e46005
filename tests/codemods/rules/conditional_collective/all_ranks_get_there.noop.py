# prelude: collectives


def a_comment_leaves_it(loss, rank):
    if rank == 0:
        # ckpt: ignore[CKPT102] the others call it in their own script
        dist.all_reduce(loss)


def a_group_of_its_own(value, rank, group, members):
    if rank in members:
        dist.all_reduce(value, group=group)
    if rank < 2:
        dist.broadcast(value, 0, group)
        dist.barrier(group)


def all_ranks_reduce_and_one_prints(loss, rank):
    dist.all_reduce(loss)
    if rank == 0:
        print(loss)
    dist.barrier()


def another_part_decides_who_returns(rank, only_main):
    if only_main and rank != 0:
        return None
    parts = read()
    if not only_main:
        dist.barrier()
    return parts


def another_part_decides_who_enters(rank, everywhere, loss):
    if everywhere or rank == 0:
        value = run()
        if everywhere:
            dist.all_reduce(value)


def each_rank_in_its_turn(value, rank):
    for turn in range(dist.get_world_size()):
        if rank == turn:
            dist.all_reduce(value)


def gradients_of_all_parameters(model):
    for p in model.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            if p.grad is None:
                p.grad = grad


def one_process_that_fails_ends_all(value, rank):
    if rank == 0:
        if value is None:
            raise ValueError("nothing to share")
    if rank == 1:
        raise RuntimeError("unsupported")
    dist.barrier()


def sends_and_receives(value, rank):
    if rank == 0:
        dist.send(value, 1)
        dist.isend(value, 2)
    else:
        dist.recv(value, 0)


def tests_on_the_number_of_processes(loss, local_rank):
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(loss)
    if local_rank != -1:
        dist.barrier()
    if local_rank >= 0:
        dist.barrier()


def wait_unless_evaluating(rank, evaluate):
    if rank != 0 and not evaluate:
        dist.barrier()
    data = read()
    if rank == 0 and not evaluate:
        dist.barrier()
    return data


def mean(value, local=False):
    if local:
        return value
    dist.all_reduce(value)


def check(rank, value):
    data = wait_unless_evaluating(rank, evaluate=True)
    return data, mean(value, local=True)


def a_function_that_reduces_if_it_is_told_to(rank, value):
    if rank == 0:
        check(rank, value)
        wait_unless_evaluating(rank, evaluate=True)
        mean(value, local=True)
