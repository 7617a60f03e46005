"""Models split over devices on two real ranks, with the check, the guard and others, for `test_placement`.

The ranks have no accelerator: `hf_device_map` declares the split, or a frozen part is on the meta device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

from ckpt_surgery.distributed.placement import check_placement, guard_placement
from ckpt_surgery.errors import PlacementError
from tests.rank_cases import run_cases

SIZE = 2
SPLIT: dict[str, int | str] = {"a": 0, "b": 1}


class Pair(nn.Module):
    """Two layers of 20 parameters each."""

    def __init__(self, device_map: dict[str, int | str] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        if device_map is not None:
            self.hf_device_map = device_map

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.b(self.a(values))
        return result


def tiny_llama() -> LlamaForCausalLM:
    """Build three layers with 30 parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2
    )
    return LlamaForCausalLM(config).train()


def pair(device_map: dict[str, int | str] | None = None) -> tuple[nn.Module, nn.Module]:
    """Return the model, and the part of it to call."""
    model = Pair(device_map)
    return model, model


def in_ddp(device_map: dict[str, int | str] | None = None) -> tuple[nn.Module, nn.Module]:
    model = Pair(device_map)
    return model, DistributedDataParallel(model)


def with_frozen_part_elsewhere() -> tuple[nn.Module, nn.Module]:
    model = Pair()
    model.frozen = nn.Linear(5, 5, device="meta").requires_grad_(False)
    return model, model


def with_buffer_elsewhere() -> tuple[nn.Module, nn.Module]:
    model = Pair()
    model.register_buffer("table", torch.empty(4, device="meta"))
    return model, model


def in_fsdp() -> tuple[nn.Module, nn.Module]:
    model = Pair()
    fully_shard(model.a)
    fully_shard(model)
    return model, model


def in_tensor_parallel() -> tuple[nn.Module, nn.Module]:
    model = Pair()
    plan = {"a": ColwiseParallel(), "b": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (SIZE,)), plan)
    return model, model


def said(action: Callable[[], Any]) -> str:
    try:
        action()
    except PlacementError as error:
        return str(error)
    return ""


def step(called: nn.Module) -> None:
    called(torch.ones(2, 4)).sum().backward()


def places(make: Callable[[], tuple[nn.Module, nn.Module]], *, allow_split: bool = False) -> dict[str, str]:
    """Return the check's answer, and a guarded training step on the model or on what is called."""
    result = {}
    for name in ("inner", "outer"):
        model, called = make()
        guarded = model if name == "inner" else called
        result[f"check {name}"] = said(partial(check_placement, guarded, allow_split=allow_split))
        with guard_placement(guarded, allow_split=allow_split):
            result[f"guard {name}"] = said(partial(step, called.train()))
    return result


def inference() -> list[str]:
    """Run a split model without training, in three ways."""
    model = Pair(SPLIT)
    with guard_placement(model):
        messages = [said(partial(model.eval(), torch.ones(2, 4)))]
        model.train()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                messages.append(said(partial(model, torch.ones(2, 4))))
        return [*messages, said(partial(model, torch.ones(2, 4)))]


CASES: dict[str, Callable[[], Any]] = {
    "whole": partial(places, pair),
    "whole in ddp": partial(places, in_ddp),
    "buffer elsewhere": partial(places, with_buffer_elsewhere),
    "fsdp": partial(places, in_fsdp),
    "tensor parallel": partial(places, in_tensor_parallel),
    "split": partial(places, partial(pair, SPLIT)),
    "split in ddp": partial(places, partial(in_ddp, SPLIT)),
    "frozen part elsewhere": partial(places, with_frozen_part_elsewhere),
    "split on purpose": partial(places, partial(in_ddp, SPLIT), allow_split=True),
    "inference": inference,
}


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    run_cases(CASES, sys.argv[1], SIZE)
