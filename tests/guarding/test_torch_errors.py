"""Errors of torch that checkpointing causes get a note; each is raised here by a real training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_debug_enabled,
)

from ckpt_surgery import guard
from ckpt_surgery.guarding.torch_errors import explain
from tests.zoo.ready_toys import WithBackwardInside

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """An embedding and blocks that the model checkpoints itself."""

    def __init__(self, *blocks: nn.Module, **options: Any) -> None:
        super().__init__()
        self.gradient_checkpointing = True
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(blocks)
        self.options = {"use_reentrant": False, **options}

    def forward(self, ids: Tensor) -> Any:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = self.call(layer, hidden)
        return hidden

    def call(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        return checkpoint(layer, hidden, **self.options)  # type: ignore[no-any-return]


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden))


class Remembering(Linear):
    """A layer that reads its memory and adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Tensor] = []

    def forward(self, hidden: Tensor) -> Tensor:
        keys = torch.cat([*self.memory, hidden], 1)
        self.memory.append(hidden.detach())
        return torch.tanh(self.linear(keys))[:, : hidden.shape[1]]


class Deepening(Linear):
    """A layer that runs once more in each call."""

    runs = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.runs += 1
        for _ in range(self.runs):
            hidden = torch.tanh(hidden)
        return super().forward(hidden)


class Flat(Linear):
    """A layer that runs as often the second time, though it once ran more often."""

    shallow = False

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden if self.shallow else torch.sin(torch.tanh(hidden))
        self.shallow = True
        return super().forward(hidden)


class Switching(Linear):
    """A layer that computes something else after the first time."""

    later = False

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = torch.exp(hidden) if self.later else torch.sin(hidden)
        self.later = True
        return super().forward(hidden)


class Outside(Linear):
    """A layer that takes one position more in each call, by a count kept elsewhere."""

    def forward(self, hidden: Tensor) -> Tensor:
        COUNT[0] = COUNT[0] % 3 + 1
        return super().forward(hidden[:, : COUNT[0]]).mean(1, keepdim=True).expand_as(hidden)


COUNT = [0]


class Choosing(Linear):
    """A layer that sends rows to one of its experts, others each time."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, hidden: Tensor) -> Tensor:
        COUNT[0] = COUNT[0] % 2 + 1
        rows = hidden[:, : COUNT[0]]
        return super().forward(hidden) + self.experts[0](rows).mean(1, keepdim=True)  # type: ignore[no-any-return]


class PartlyCompiled(Outside):
    def __init__(self) -> None:
        super().__init__()
        self.fast = torch.compile(torch.exp, backend="eager")


class InContext(Linear):
    """A layer that needs a context which its model opens for the forward."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden * OPEN[-1])


class Opening(Net):
    def forward(self, ids: Tensor) -> Any:
        OPEN.append(2.0)
        try:
            return super().forward(ids)
        finally:
            OPEN.pop()


OPEN: list[float] = []


class Intervening(Net):
    """A model with hooks for its forward alone."""

    def forward(self, ids: Tensor) -> Any:
        parts = [layer.get_submodule("linear") for layer in self.layers]
        handles = [part.register_forward_hook(lambda *given: given[2].exp()) for part in parts]
        result = super().forward(ids)
        for handle in handles:
            handle.remove()
        return result


class HalfByHand(Linear):
    """A layer that computes in another dtype when it runs again."""

    first = True

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = torch.sin(hidden.bfloat16() if self.first else hidden)
        self.first = False
        return super().forward(hidden.float())


class Sharing(Net):
    """A model that runs one block twice under one autocast, each time in a separate checkpoint."""

    def forward(self, ids: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(ids)


class Greedy(torch.autograd.Function):
    """A function that reads what it saved once too often."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(hidden)
        return hidden.exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = gradients[0] * ctx.saved_tensors[0].exp() + 0 * ctx.saved_tensors[0]
        return result


class OfGreedy(Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(Greedy.apply(hidden))  # type: ignore[no-untyped-call]


class Recurrent(Linear):
    """A layer that goes on from the state of the step before."""

    state: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = super().forward(hidden if self.state is None else hidden + self.state)
        self.state = hidden.mean().exp()
        return hidden


class Biased(Net):
    """A model whose blocks add a bias from outside."""

    def call(self, layer: nn.Module, hidden: Tensor) -> Tensor:
        if layer is self.layers[0]:
            self.bias = [(self.embed.weight.exp()).sum()]
        bias = self.bias[0]
        return checkpoint(lambda given: layer(given) * bias, hidden, **self.options)  # type: ignore[no-any-return]


class Filling(Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        hidden += 1
        return super().forward(hidden)


class Embedding(nn.Module):
    """Embeddings whose output requires gradient, as transformers makes that of frozen ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fill = nn.Embedding(8, 4).requires_grad_(False), Filling()
        self.enable_input_require_grads()

    def enable_input_require_grads(self) -> None:
        def make_inputs_require_grads(_module: nn.Module, _given: Any, output: Tensor) -> None:
            output.requires_grad_(True)

        make_inputs_require_grads.__qualname__ = "PreTrainedModel.enable_input_require_grads.<locals>.hook"
        self.embed.register_forward_hook(make_inputs_require_grads)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fill(self.embed(ids))  # type: ignore[no-any-return]


def nothing_kept() -> Any:
    contexts: Any = create_selective_checkpoint_contexts
    return contexts(lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)


def twice(model: nn.Module) -> None:
    loss = model(IDS).sum()
    loss.backward()
    loss.backward()


def frozen(*parts: str, head: bool = False) -> nn.Module:
    """Make a model of reentrant blocks with frozen parts."""
    model = Net(Linear(), Linear(), use_reentrant=True)
    for part in parts:
        model.get_submodule(part).requires_grad_(False)
    return nn.Sequential(model, Linear()) if head else model


def without_gradients(model: nn.Module) -> None:
    steps(model, 1)
    with torch.no_grad():
        loss = model(IDS).sum()
    loss.backward()


def steps(model: nn.Module, several: int = 2) -> None:
    for _ in range(several):
        model(IDS).sum().backward()


def in_debug_mode(model: nn.Module) -> None:
    with set_checkpoint_debug_enabled(True):
        steps(model)


IDS = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("model", "train", "raised", "notes"),
    [
        pytest.param(
            lambda: Net(Remembering(), Remembering()),
            steps,
            "have different metadata",
            ("layers.1 (Remembering) found other things", "memory (0 entries, and then 1 entry)", "use_cache=False"),
            id="a memory that grows",
        ),
        pytest.param(
            lambda: Net(Remembering(), Remembering()),
            in_debug_mode,
            "An error happened while unpacking",
            ("layers.1 (Remembering) found other things", "memory (0 entries, and then 1 entry)"),
            id="the same in torch's debug mode",
        ),
        pytest.param(
            lambda: Net(Flat(), Flat()),
            steps,
            "A different number of tensors",
            ("layers.1 (Flat) found other things", "shallow (nothing, and then True)"),
            id="a branch that is taken once",
        ),
        pytest.param(
            lambda: Net(Deepening(), Deepening(), early_stop=False),
            steps,
            "trying to save more tensors",
            ("layers.1 (Deepening) found other things", "runs (nothing, and then 1)"),
            id="a block that grows",
        ),
        pytest.param(
            lambda: Net(Outside(), Outside()),
            steps,
            "have different metadata",
            (
                "layers.1 (Outside) went another way",
                "(it saved a tensor of shape [4, 4], and then of [6, 4])",
                "not seen",
            ),
            id="a length that is counted outside of the block",
        ),
        pytest.param(
            lambda: Net(Choosing(), Choosing()),
            steps,
            "have different metadata",
            ("layers.1 (Choosing) went another way", "It has a router", "(topk)"),
            id="a router that chooses other experts",
        ),
        pytest.param(
            lambda: Net(PartlyCompiled(), PartlyCompiled()),
            steps,
            "have different metadata",
            ("layers.1 (PartlyCompiled) went another way", "A part of it is compiled"),
            id="a block with a part that is compiled",
        ),
        pytest.param(
            lambda: Net(HalfByHand(), HalfByHand()),
            steps,
            "have different metadata",
            ("it saved a tensor of dtype bfloat16, and then of float32", "first (nothing, and then False)"),
            id="a block that computes in another dtype",
        ),
        pytest.param(
            lambda: Intervening(Linear(), Linear()),
            steps,
            "A different number of tensors",
            ("layers.1 (Linear) found other things", "hooks on linear (1 entry, and then nothing)"),
            id="hooks that are gone",
        ),
        pytest.param(
            lambda: Sharing(*[Linear()] * 2, context_fn=nothing_kept),
            steps,
            "_to_copy",
            ("(Linear) did not cast what its forward has cast", "cache_enabled=False"),
            id="a weight that is cast in the checkpoint before",
        ),
        pytest.param(
            lambda: Net(OfGreedy()),
            steps,
            "already unpacked once",
            ("what the recompute of layers.0 (OfGreedy) made was asked for twice", "read it once"),
            id="saved tensors that are read twice",
        ),
        pytest.param(
            lambda: Net(Switching(), Switching(), context_fn=nothing_kept),
            steps,
            "not found in storage",
            ("layers.1 (Switching) found other things", "later (nothing, and then True)"),
            id="a block that switches under a selective policy",
        ),
        pytest.param(
            lambda: Net(Recurrent(), Recurrent()),
            steps,
            "backward through the graph a second time",
            ("layers.0.state, layers.1.state hold tensors with the graph of an earlier step", "detach()"),
            id="a state that is kept with its graph",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.Embedding(8, 4), Linear()),
            twice,
            "backward through the graph a second time",
            ("known causes are", "backward() called twice on one loss"),
            id="a loss that is run backward twice",
        ),
        pytest.param(
            lambda: Biased(Linear(), Linear(), use_reentrant=True),
            partial(steps, several=1),
            "backward through the graph a second time",
            ("inside the reentrant checkpoint of layers.", "(Linear) came to a graph that was freed", "by position"),
            id="a bias by a closure in reentrant mode",
        ),
        pytest.param(
            Embedding,
            steps,
            "a leaf Variable that requires grad",
            ("fill (Filling) writes into a leaf", "of what embed (Embedding) returns", "clone()"),
            id="embeddings that are written in place",
        ),
        pytest.param(
            partial(frozen, "embed"),
            steps,
            "does not require grad and does not have a grad_fn",
            ("none of the inputs of block layers.0 needs gradient", "enable_input_require_grads()"),
            id="a reentrant checkpoint behind frozen embeddings",
        ),
        pytest.param(
            partial(frozen, "embed", "layers"),
            steps,
            "does not require grad and does not have a grad_fn",
            ("no parameter of Net requires gradient: unfreeze",),
            id="a model that is frozen",
        ),
        pytest.param(
            partial(frozen, "embed", head=True),
            without_gradients,
            "does not require grad and does not have a grad_fn",
            ("the loss has no graph. Known causes: a forward under torch.no_grad()",),
            id="a forward without gradients, behind a step in which blocks were cut off",
        ),
    ],
)
def test_the_note_names_the_block_and_what_is_known(
    model: Callable[[], nn.Module], train: Callable[[nn.Module], None], raised: str, notes: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    trained = model()
    with pytest.raises(RuntimeError) as bare:
        train(model())
    assert raised in str(bare.value)
    assert not hasattr(bare.value, "__notes__")
    with pytest.raises(RuntimeError) as ended, guard(trained, on_fault="collect"):
        train(trained)
    assert str(ended.value).splitlines()[0] == str(bare.value).splitlines()[0]
    (note,) = ended.value.__notes__
    assert note.startswith("ckpt_surgery: ")
    for part in notes:
        assert part in note
    explain(ended.value, [])
    assert len(ended.value.__notes__) == 1


@pytest.mark.parametrize(
    ("reentrant", "notes"),
    [
        (True, ("in the reentrant checkpoint of layers.0 (Linear)", "use use_reentrant=False")),
        (False, ("more than once in a backward", "several forwards before one backward")),
    ],
)
def test_a_parameter_that_is_ready_twice_is_explained(one_rank: None, reentrant: bool, notes: tuple[str, ...]) -> None:
    model = Net(*[Linear()] * 2, use_reentrant=reentrant)
    model.unused = nn.Parameter(torch.zeros(3))
    outer = DistributedDataParallel(model, find_unused_parameters=not reentrant)
    around = torch.zeros(()) if reentrant else model.unused.sum()
    with pytest.raises(RuntimeError, match="ready only once") as ended, guard(outer, on_fault="collect"):
        (outer(IDS).sum() + around).backward()
    (note,) = ended.value.__notes__
    for part in notes:
        assert part in note


def test_an_error_of_the_script_in_a_recompute_is_named_as_one() -> None:
    model = Opening(InContext(), InContext())
    with pytest.raises(IndexError) as ended, guard(model, on_fault="collect"):
        steps(model)
    (note,) = ended.value.__notes__
    assert "came up in the recompute of layers.1 (InContext), and not in its forward" in note


class Tiled(WithBackwardInside):
    """A function whose backward runs another for each half of its input."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, layer: nn.Module, anchor: Tensor) -> Any:  # type: ignore[override]
        return WithBackwardInside.forward(ctx, hidden, layer)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        given = [half.detach().requires_grad_() for half in ctx.saved_tensors[0].chunk(2)]
        for half, gradient in zip(given, gradients[0].chunk(2), strict=True):
            with torch.enable_grad():
                output = ctx.module(half)
            torch.autograd.backward(output, gradient)
        return torch.cat([cast(Tensor, half.grad) for half in given]), None, None


def test_a_nested_backward_is_named_where_parameters_are_ready_twice(one_rank: None) -> None:
    class Cut(Net):
        def call(self, layer: nn.Module, hidden: Tensor) -> Tensor:
            anchor = next(layer.parameters())
            return Tiled.apply(hidden, layer, anchor)  # type: ignore[no-any-return, no-untyped-call]

    outer = DistributedDataParallel(Cut(Linear(), Linear()))
    with pytest.raises(RuntimeError, match="ready only once") as ended, guard(outer, on_fault="collect"):
        outer(IDS).sum().backward()
    (note,) = ended.value.__notes__
    assert "Tiled.backward (" in note
    assert "accumulates into parameter layers." in note


def test_other_errors_get_no_note() -> None:
    model = Net(Linear())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as ended, guard(model, on_fault="collect"):
        model.layers[0](torch.zeros(2, 7))
    assert not hasattr(ended.value, "__notes__")
