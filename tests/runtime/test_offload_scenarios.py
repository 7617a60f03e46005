"""Offload beside other training code: modes, hooks, nested checkpoints, views, subclasses, adapters."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu
from torch.utils.checkpoint import set_checkpoint_early_stop

from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.offloader import Offloader, Transport
from tests.runtime.late_copies import Deferred
from tests.zoo.offload_toys import (
    BLOCKS,
    Function,
    backward,
    blocks,
    call,
    first,
    forward,
    gradients,
    grads,
    same,
)

pytestmark = [
    pytest.mark.both,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself"),
]


@pytest.fixture(params=["late", "files"])
def offloader(request: pytest.FixtureRequest, tmp_path: Path) -> Offloader:
    transport: Transport = Deferred(0) if request.param == "late" else DiskTransport(tmp_path)
    return Offloader(transport, minimum_bytes=0)


@pytest.mark.parametrize("early", [True, False])
def test_a_recompute_may_stop_early_or_not(early: bool, offloader: Offloader) -> None:
    with set_checkpoint_early_stop(early):
        assert same(gradients(offloader), gradients())
    assert offloader.stats.tensors == BLOCKS - 1


def nested(outer: Offloader | None, inner: Offloader | None) -> list[Tensor]:
    """Build two stages of two blocks; stages and blocks are checkpointed."""
    stack, hidden = blocks(4), first()

    def stage(some: Sequence[nn.Module]) -> nn.Module:
        def run(values: Tensor) -> Tensor:
            for block in some:
                values = call(block, inner, values)
            return values

        return Function(run)

    backward(forward([stage(stack[:2]), stage(stack[2:])], hidden, outer))
    return grads(hidden, *(parameter for block in stack for parameter in block.parameters()))


def test_checkpoints_may_be_nested_with_one_offloader_or_two(offloader: Offloader) -> None:
    expected, other = nested(None, None), Offloader(Deferred(1), minimum_bytes=0)
    for outer, inner in ((offloader, None), (None, other), (offloader, other), (offloader, offloader)):
        for _ in range(2):
            assert same(nested(outer, inner), expected)
    assert offloader.stats.tensors > 0
    gc.collect()
    assert not offloader._known
    assert not other._known


@pytest.mark.parametrize("inside", [False, True], ids=["around a step", "in a block"])
def test_other_hooks_on_saved_tensors_go_with_it(inside: bool, offloader: Offloader) -> None:
    def hooked(block: nn.Module) -> nn.Module:
        def run(values: Tensor) -> Tensor:
            with save_on_cpu():
                result: Tensor = block(values)
            return result

        return Function(run) if inside else block

    stack, hidden = blocks(), first()
    with nullcontext() if inside else save_on_cpu():
        loss = forward([hooked(block) for block in stack], hidden, offloader)
    backward(loss)
    everything = grads(hidden, *(parameter for block in stack for parameter in block.parameters()))
    assert same(everything, gradients())
    # hooks in the block keep all that its backward needs
    assert offloader.stats.tensors == (0 if inside else BLOCKS - 1)


def test_where_hooks_are_forbidden_that_is_said_and_the_next_step_works(offloader: Offloader) -> None:
    with disable_saved_tensors_hooks("no hooks here"), pytest.raises(RuntimeError, match="no hooks here"):
        forward(blocks(), first(), offloader)
    assert same(gradients(offloader), gradients())
    assert offloader.stats.tensors == BLOCKS - 1


def test_adapters_on_frozen_blocks_get_their_gradients() -> None:
    # Under PEFT, with dropout in the adapters.
    peft = pytest.importorskip("peft")
    from ckpt_surgery import wrap_blocks
    from tests.zoo.tiny_models import llama, tokens

    def trained(offload: str | None) -> tuple[dict[str, Tensor], Any]:
        config = peft.LoraConfig(
            r=4, lora_dropout=0.5, target_modules=["q_proj", "down_proj"], init_lora_weights=False
        )
        torch.manual_seed(0)
        model = peft.get_peft_model(llama(3), config)
        model.enable_input_require_grads()
        surgery = None if offload is None else wrap_blocks(model, offload=offload)
        torch.manual_seed(1)
        model(**tokens()).loss.backward()
        return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}, surgery

    expected, _ = trained(None)
    moved, surgery = trained("cpu")
    assert moved.keys() == expected.keys()
    assert all(torch.allclose(moved[name], expected[name], rtol=1e-5, atol=1e-7) for name in expected)
    assert surgery.stats.tensors == 2
