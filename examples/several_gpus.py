"""Two silent faults of training on several GPUs, and their repairs, on two processes without a GPU:

torchrun --nproc-per-node 2 examples/several_gpus.py
"""

from __future__ import annotations

import gc
import warnings
from textwrap import shorten

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import ZambaForCausalLM
from transformers.utils import logging

from ckpt_surgery import wrap_blocks
from ckpt_surgery.distributed import call_through_ddp, ddp_ready, gradients_in_sync, watch_ddp
from ckpt_surgery.tiny import tiny_model


def main() -> None:
    """Show both faults, each as it is usually written, and then repaired."""
    dist.init_process_group("gloo")
    logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)
    say("1. Zamba runs one transformer at several depths; reentrant checkpointing under DDP")
    ddp, inputs = made()
    ddp.module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    say(f"   as released:      {attempt(ddp, inputs)}")
    ddp, inputs = made(repaired=True)
    say(f"   repaired:         {attempt(ddp, inputs)}")

    say("2. the loss comes from ddp.module")
    ddp, inputs = made(repaired=True)
    with warnings.catch_warnings(record=True) as caught, watch_ddp(ddp):
        warnings.simplefilter("always")
        ddp.module(**inputs).loss.backward()
    say(f"   as written:       {verdict(ddp)}")
    say(f"   watch_ddp:        {shorten(str(caught[-1].message), 95, placeholder=' ...')}")
    ddp.zero_grad()
    loss: Tensor = call_through_ddp(ddp, lambda model: model(**inputs).loss)
    loss.backward()  # type: ignore[no-untyped-call]
    say(f"   call_through_ddp: {verdict(ddp)}")
    del ddp, loss
    gc.collect()
    dist.destroy_process_group()


def made(*, repaired: bool = False) -> tuple[DistributedDataParallel, dict[str, Tensor]]:
    """Make a tiny Zamba under DDP, and a different batch for each rank."""
    tiny = tiny_model(ZambaForCausalLM)
    model = tiny.model.train()
    if repaired:
        wrap_blocks(model)
    inputs = {**tiny.inputs, "input_ids": tiny.inputs["input_ids"].roll(dist.get_rank(), dims=1)}
    return DistributedDataParallel(model, **ddp_ready(model).options), inputs


def attempt(ddp: DistributedDataParallel, inputs: dict[str, Tensor]) -> str:
    """Run one step, and return its error or whether the ranks agree."""
    try:
        ddp(**inputs).loss.backward()
    except RuntimeError as error:
        return f"RuntimeError: {str(error).partition('. ')[0]}"
    return verdict(ddp)


def verdict(ddp: DistributedDataParallel) -> str:
    """Say how many gradients differ between the ranks."""
    total = sum(parameter.grad is not None for parameter in ddp.parameters())
    return f"{len(gradients_in_sync(ddp))} of {total} gradients differ between the ranks"


def say(text: str) -> None:
    """Print on the first rank only."""
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
