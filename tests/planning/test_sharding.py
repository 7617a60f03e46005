"""A predicted rank matches a real rank under FSDP2, and ZeRO's sizes match its paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM

from ckpt_surgery import explain, wrap_blocks
from ckpt_surgery.measure.meter import LiveBytes
from ckpt_surgery.planning.allocations import AllocationKind
from ckpt_surgery.planning.sharding import held_states
from ckpt_surgery.planning.training import Optimizer, Sharding, TrainingSetup
from tests.zoo.tiny_models import llama, tokens

pytestmark = pytest.mark.torch
RANKS = 4


@pytest.fixture
def rank() -> Iterator[Any]:
    """Pose as the first of several ranks; return its device mesh."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


def wide_llama() -> tuple[Any, dict[str, Any]]:
    """Build a Llama whose blocks weigh about as much as what they keep, and its inputs."""
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 200}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, use_cache=False, **sizes)).train()
    ids = torch.zeros(1, 64, dtype=torch.long)
    return model, {"input_ids": ids, "labels": ids}


class RankBytes(LiveBytes):  # type: ignore[no-untyped-call]
    """The bytes alive after each operator; FSDP2 frees and refills the storages of gathered parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
        self._gathered = [state._fsdp_param_group for state in states]
        self.points: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        changed = 0
        for parameter in (each for group in self._gathered if group for each in group.fsdp_params):
            for tensor in parameter.all_gather_outputs:
                record = next(self._tracked([tensor]), None)
                changed += tensor.untyped_storage().nbytes() - (record.bytes if record else 0)
        self.points.append(self._bytes + changed)
        return result


def sharded_step(model: nn.Module, inputs: Mapping[str, Any], mesh: Any) -> tuple[int, int, int]:
    """Return a real rank's bytes of parameters and gradients, and its step's peak besides parameters."""
    for layer in model.model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(**inputs).loss.backward()  # makes what FSDP2 makes once
    model.zero_grad()
    meter = RankBytes(model)
    with meter:
        model(**inputs).loss.backward()
    parameters = list(model.parameters())
    held = sum(p.to_local().untyped_storage().nbytes() for p in parameters)  # type: ignore[attr-defined]
    gradients = sum(p.grad.to_local().nbytes for p in parameters if p.grad is not None)  # type: ignore[attr-defined]
    return held, gradients, max(meter.points)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_rank_under_fsdp_holds_what_is_reported(rank: Any, wrapped: bool) -> None:
    model, inputs = wide_llama()
    if wrapped:
        wrap_blocks(model, self_check="never")
    told = explain(model, inputs, ranks=RANKS, sharding="fsdp")
    parameters, gradients, peak = sharded_step(model, inputs, rank)
    assert (told.parameter_bytes, told.gradient_bytes) == (parameters, gradients)
    assert told.peak_bytes - told.parameter_bytes - told.buffer_bytes == pytest.approx(peak, rel=1e-3)
    assert told.peak.by_kind[AllocationKind.GATHERED] > 0


def test_the_parts_of_odd_sizes_are_padded() -> None:
    odd = nn.Linear(3, 5, bias=False)
    assert held_states(odd.parameters(), TrainingSetup(Optimizer.ADAMW, 4, Sharding.FSDP))[0] == 2 * 3 * 4
    assert held_states(odd.parameters(), TrainingSetup(Optimizer.ADAMW, 4, Sharding.FSDP))[1] == 2 * 2 * 3 * 4
    assert held_states(odd.parameters(), TrainingSetup(Optimizer.ADAMW))[0] == 5 * 3 * 4


@pytest.mark.parametrize(
    ("stage", "expected"), [(Sharding.ZERO_1, 31.4), (Sharding.ZERO_2, 16.6), (Sharding.ZERO_3, 1.9)]
)
def test_the_sizes_of_the_zero_paper(stage: Sharding, expected: float) -> None:
    # Rajbhandari et al. 2020, figure 1: 7.5 billion parameters in half precision, Adam, 64 ranks, in GB.
    count, ranks = 7_500_000_000, 64
    parameter = nn.Parameter(torch.empty(count, dtype=torch.bfloat16, device="meta"))
    states = held_states([parameter], TrainingSetup(Optimizer.ADAMW, ranks, stage))
    gradients = 2 * count // (1 if stage is Sharding.ZERO_1 else ranks)
    assert round((sum(states) + gradients) / 1e9, 1) == pytest.approx(expected, abs=0.051)


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_a_rank_under_zero_gathers_and_reduces_in_buffers(stage: str) -> None:
    model, inputs = llama(4), tokens(32)
    alone = explain(model, inputs, optimizer="adamw")
    told = explain(model, inputs, optimizer="adamw", ranks=RANKS, sharding=stage)
    parameters = list(model.parameters())
    part = sum(-(-p.numel() // RANKS) * p.itemsize for p in parameters)
    assert told.kept_bytes == alone.kept_bytes
    assert told.parameter_bytes == (part if stage == "zero3" else alone.parameter_bytes)
    assert told.gradient_bytes == (alone.gradient_bytes if stage == "zero1" else part)
    assert told.optimizer_bytes < alone.optimizer_bytes
    live = alone.gradient_bytes + (alone.parameter_bytes if stage == "zero3" else 0)
    assert max(told.timeline.bytes[AllocationKind.GATHERED]) == live  # smaller than a bucket
