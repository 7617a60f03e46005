"""Offload beside other training code: modes, hooks, nested checkpoints, views, subclasses, adapters."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

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
    WIDTH,
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


def square(seed: int) -> Tensor:
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def test_a_square_tensor_and_its_transpose_come_back_as_two(offloader: Offloader) -> None:
    def run(given: Offloader | None) -> list[Tensor]:
        stack, values = blocks(), square(1)
        shared = values * 1
        hidden = shared
        views = shared, shared.t(), shared[:, torch.arange(WIDTH)], shared.view(-1).view(WIDTH, WIDTH)
        for number, block in enumerate(stack):
            other = views[number % len(views)]
            hidden = call(block, given, hidden, other)
        backward(hidden.square().sum())
        return grads(values, *(parameter for block in stack for parameter in block.parameters()))

    assert same(run(offloader), run(None))
    assert offloader.stats.tensors > BLOCKS


@pytest.mark.parametrize("early", [True, False])
def test_a_recompute_may_stop_early_or_not(early: bool, offloader: Offloader) -> None:
    with set_checkpoint_early_stop(early):
        assert same(gradients(offloader), gradients())
    assert offloader.stats.tensors == BLOCKS - 1


def test_inference_between_a_forward_and_its_backward_changes_nothing(offloader: Offloader) -> None:
    stack, hidden = blocks(), first()
    loss = forward(stack, hidden, offloader)
    before = offloader.stats.tensors
    with torch.inference_mode():
        forward(stack, first(2), offloader)
    backward(loss)
    assert offloader.stats.tensors == before
    assert torch.equal(grads(hidden)[0], gradients()[0])


def test_dropout_drops_the_same_again(offloader: Offloader) -> None:
    def run(given: Offloader | None) -> list[Tensor]:
        stack, hidden = blocks(), first()
        torch.manual_seed(3)
        dropping = [nn.Sequential(block, nn.Dropout(0.5)) for block in stack]
        backward(forward(dropping, hidden, given))
        return grads(hidden, *stack[0].parameters())

    assert same(run(offloader), run(None))
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


class Turned(torch.autograd.Function):
    """A function whose gradient is a view of what it saved."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.t().contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        result: Tensor = values.view(values.shape)
        return result


def test_a_gradient_may_be_a_view_of_what_came_back(offloader: Offloader) -> None:
    # A hook keeps it while later inputs come back.
    def run(given: Offloader | None) -> list[Tensor]:
        kept: list[Tensor] = []
        hidden = (values := square(1)) * 1
        for block in blocks():
            cast(Any, hidden).register_hook(kept.append)
            hidden = call(Function(Turned.apply), given, hidden)
            hidden = call(block, given, hidden)
        backward(hidden.square().sum())
        return [*grads(values), *kept]

    assert same(run(offloader), run(None))
    assert offloader.stats.tensors == 2 * BLOCKS - 1


class Packed(Tensor):
    """A tensor subclass, like quantised tensors. `test_recorded_call` tests what becomes of its class."""


def test_a_subclass_stays_and_keeps_its_gradient(offloader: Offloader) -> None:
    def block(hidden: Tensor, packed: Tensor) -> Tensor:
        return hidden + torch.tanh(hidden * packed.as_subclass(Tensor))

    def run(given: Offloader | None) -> list[Tensor]:
        hidden, weight = first(), first(2)
        packed = (weight * 1).as_subclass(Packed)
        backward(forward([Function(block)] * 4, hidden, given, others=[packed]))
        return grads(hidden, weight)

    assert same(run(offloader), run(None))
    assert (offloader.stats.tensors, offloader.stats.kept) == (3, 1 + 4)


def test_of_a_branch_that_the_loss_leaves_out_nothing_stays(offloader: Offloader) -> None:
    stack = blocks()
    for number in range(20):
        used, unused = first(number), first(number + 1)
        forward(stack, unused, offloader)
        backward(forward(stack, used, offloader))
        del used, unused
    gc.collect()
    assert not offloader._known
    copies = offloader.transport.host_copies if isinstance(offloader.transport, Deferred) else ()
    assert not copies


def threads_of(offloaders: Sequence[Offloader], steps: int) -> int:
    """Return the most threads of ours at any time while each took some steps."""
    before, most = set(threading.enumerate()), 0
    for _ in range(steps):
        for offloader in offloaders:
            gradients(offloader)
        there = set(threading.enumerate()) - before
        most = max(most, sum(thread.name.startswith("ckpt-surgery") for thread in there))
    return most


@pytest.mark.parametrize(("count", "steps"), [(1, 200), (2, 2)])
def test_each_offloader_has_one_thread_however_many_steps(count: int, steps: int, tmp_path: Path) -> None:
    offloaders = [Offloader(DiskTransport(tmp_path), minimum_bytes=0) for _ in range(count)]
    assert threads_of(offloaders, steps) == count


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
