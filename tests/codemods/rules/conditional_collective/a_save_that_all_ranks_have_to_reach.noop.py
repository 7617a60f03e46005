# CKPT102 unsafe | save(model) | `config.evaluate_everywhere or config.local_rank in [-1, 0]`
# prelude: collectives

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

def train(config, model, batches):
    for batch in batches:
        save(model)
        if config.evaluate_everywhere or config.local_rank in [-1, 0]:
            result = evaluate(model)
            if result.is_best:
                save(model)
