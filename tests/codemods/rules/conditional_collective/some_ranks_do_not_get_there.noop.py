# CKPT102 unsafe | dist.all_reduce(loss) | depending on `dist.get_rank() == 0` on line 6: the ranks wait
# CKPT102 unsafe | dist.all_reduce(loss) | on line 6, unless `everywhere` is true
# CKPT102 unsafe | dist.barrier() | on line 8: the ranks wait
# CKPT102 unsafe | dist.barrier() | outside the condition; where one rank is to go first, it needs the same call
# CKPT102 unsafe | dist.all_reduce(total)
# CKPT102 unsafe | dist.barrier()
# CKPT102 unsafe | dist.all_reduce(value)
# CKPT102 unsafe | dist.broadcast(value, 0)
# CKPT102 unsafe | dist.all_reduce(value)
# CKPT102 unsafe | dist.all_reduce(loss)
# CKPT102 unsafe | dist.all_reduce(loss)
# CKPT102 unsafe | dist.all_reduce(p.grad) | mix the gradients of different parameters
# CKPT102 unsafe | dist.all_reduce(p.grad) | use sync_gradients(model)
# CKPT102 unsafe | dist.barrier() | `not self.first`
# CKPT102 unsafe | print(mean(loss)) | mean(...) runs on some ranks only
# CKPT102 unsafe | save(model) | `config.evaluate_everywhere or config.local_rank in [-1, 0]`
# prelude: collectives


def only_rank_0_reduces(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print(loss)


def an_option_has_all_ranks_take_the_branch(loss, everywhere):
    if everywhere or dist.get_rank() == 0:
        dist.all_reduce(loss)
    if dist.get_rank() == 0:
        dist.barrier()


def a_barrier_behind_an_early_return(model, rank):
    if rank != 0:
        return
    torch.save(model, "model.pt")
    dist.barrier()
    dist.broadcast(model.step, 0)


def a_loop_of_all_ranks_beside_it(batches, total, rank):
    for batch in batches:
        dist.all_reduce(batch)
    if rank == 0:
        dist.all_reduce(total)


def another_part_does_not_decide_who_returns(rank, only_main):
    if only_main and rank != 0:
        return None
    dist.barrier()


def another_part_does_not_decide_who_enters(rank, everywhere, best):
    if everywhere or rank == 0:
        value = run()
        if best:
            dist.all_reduce(value)


def different_collectives_in_the_two_branches(value, rank):
    if rank == 0:
        dist.broadcast(value, 0)
    else:
        dist.all_reduce(value)


def the_opposite_by_another_name(loss, rank):
    is_worker = not (rank == 0)
    if is_worker:
        dist.all_reduce(loss)


def the_others_do_nothing_of_the_kind(loss, rank, logger):
    if rank == 0:
        dist.all_reduce(loss)
    else:
        losses = []
        losses.append(torch.zeros(1).cuda().item())
        logger.info("waiting")


def gradients_that_are_not_there_are_passed_over(model):
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        dist.all_reduce(p.grad)


def gradients_that_are_there(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)


class FirstRank:
    def __enter__(self):
        self.first = int(os.environ["LOCAL_RANK"]) == 0
        if not self.first:
            dist.barrier()

    def __exit__(self, *error):
        if not self.first:
            print("the first rank is done")


def mean(value):
    if not dist.is_initialized():
        return value
    dist.all_reduce(value)
    return value / dist.get_world_size()


def a_function_that_reduces(loss, local_rank):
    if local_rank == 0:
        print(mean(loss))


def save(model):
    if groups.model_parallel_is_initialized():
        dp_rank = groups.get_data_parallel_rank()
    elif dist.is_initialized():
        dp_rank = dist.get_rank()
    else:
        dp_rank = -1
    if dist.is_initialized() and dp_rank != 0:
        dist.barrier()
    if dp_rank in [-1, 0]:
        model.save_pretrained("out")
        if dist.is_initialized():
            dist.barrier()


def a_save_that_all_ranks_have_to_reach(config, model, batches):
    for batch in batches:
        save(model)
        if config.evaluate_everywhere or config.local_rank in [-1, 0]:
            result = evaluate(model)
            if result.is_best:
                save(model)
