# CKPT012 unsafe | wrap(layer, preserve_rng_state=False) | with dropout (`lora_dropout: float = 0.05`): the recompute draws another mask
# CKPT012 unsafe | options = {"use_reentrant": False, "preserve_rng_state": False} | the gradients are wrong
# file: training/finetune.py
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrap


def parallelize(model):
    model.layers = [wrap(layer, preserve_rng_state=False) for layer in model.layers]
    return model


def main(model, lora_dropout: float = 0.05):
    options = {"use_reentrant": False, "preserve_rng_state": False}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return parallelize(add_adapters(model, lora_dropout))
