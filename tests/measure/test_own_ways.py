"""Models that checkpoint in unusual ways: no false alarm, and real faults are still seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.results import ModeReport
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.measure.verify import verify
from ckpt_surgery.model_patches.release_names import FUNCTION
from tests.measure.toys import Layer, Model, model_of
from tests.zoo.ready_toys import WithBackwardInside

pytestmark = [pytest.mark.both, pytest.mark.torch]

WIDTH = 8
TRACKER: dict[str, Tensor] = {}
LEVELS = ("run", "recompute", "set", "values", "state", "cost", "precision")


class Block(nn.Module):
    """A block that checkpoints what `way` names."""

    way = "nothing"

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def part(self, name: str, values: Tensor) -> Tensor:
        module: nn.Module = getattr(self, name)
        if self.way in (name, "both parts"):
            again: Tensor = reentrant_or_not(module, values)
            return again
        result: Tensor = module(values)
        return result

    def forward(self, values: Tensor) -> Tensor:
        values = values + self.part("attention", self.norm(values))
        return values + self.part("mlp", values)


def reentrant_or_not(function: Callable[..., Any], *args: Any, reentrant: bool = False) -> Any:
    return checkpoint(function, *args, use_reentrant=reentrant)


class Toy(nn.Module):
    """A model that runs its blocks as `way` says while checkpointing is on."""

    def __init__(self, block: Callable[[], nn.Module] = Block, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.on = False

    def run(self, block: nn.Module, values: Tensor) -> Any:
        return block(values)

    def forward(self, values: Tensor) -> Any:
        values = self.first(values)
        for block in self.blocks:
            values = self.run(block, values)
        return values


class Checkpointed(Toy):
    """A model that checkpoints each block as a whole."""

    reentrant = False

    def run(self, block: nn.Module, values: Tensor) -> Any:
        return reentrant_or_not(block, values, reentrant=self.reentrant) if self.on else block(values)


def examined(model: nn.Module, switch: Callable[[Any, Any], None], mode: str = "non_reentrant") -> ModeReport:
    torch.manual_seed(0)
    report = verify(model, torch.randn(4, 6, WIDTH), modes=mode, levels=LEVELS, switch=switch)  # type: ignore[arg-type]
    return report.modes[0]


def kinds(report: ModeReport) -> list[FaultKind]:
    return [fault.kind for fault in report.faults]


def causes(report: ModeReport) -> set[CauseKind]:
    return {fault.explanation.kind for fault in report.faults if fault.explanation is not None}


def on_and_off(model: Any, mode: Any) -> None:
    model.on = mode is not None


def parts(way: str) -> Callable[[Any, Any], None]:
    def switch(model: Any, mode: Any) -> None:
        for block in model.blocks:
            block.way = way if mode is not None else "nothing"

    return switch


def test_blocks_may_checkpoint_parts_and_one_that_is_left_out_is_named() -> None:
    assert kinds(examined(Toy(), parts("both parts"))) == []
    report = examined(Toy(), parts("attention"))
    assert kinds(report) == [FaultKind.PART_NOT_RECOMPUTED]
    assert report.faults[0].subjects == tuple(f"blocks.{index}.mlp" for index in range(3))
    skip = next(skip for skip in report.skips if skip.kind is SkipKind.OWN_PARTS)
    assert skip.levels == ("cost",)
    assert skip.details["reference"] == 35904
    assert 0 < int(str(skip.details["kept"])) < 35904


class Again(torch.autograd.Function):
    """The tangent of a product whose factors are recomputed."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, values: Tensor, keeps: bool) -> Tensor:
        ctx.keeps = keeps
        ctx.save_for_backward(values, *((values.sin(), values.cos(), values.exp()) if keeps else ()))
        return values.sin() * values.exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, *kept = ctx.saved_tensors
        sine, cosine, power = kept or (values.sin(), values.cos(), values.exp())
        return gradients[0] * (cosine * power + sine * power) * (1.0 if ctx.keeps else Again.factor), None


class Own(nn.Module):
    keeps = True

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = Again.apply(self.linear(values), self.keeps)  # type: ignore[no-untyped-call]
        return result


def keeping(model: Any, mode: Any) -> None:
    for block in model.blocks:
        block.keeps = mode is None


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_function_that_recomputes_is_named_where_it_is_wrong(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Again, "factor", factor)
    report = examined(Toy(Own), keeping)
    assert kinds(report) == ([] if factor == 1 else [FaultKind.GRADIENT_VALUE])
    assert causes(report) == (set() if factor == 1 else {CauseKind.OWN_FUNCTION})


class Packing(Toy):
    """A model that packs what its operators save, and brings back `factor` times that."""

    factor = 1.0

    def forward(self, values: Tensor) -> Any:
        if not self.on:
            return super().forward(values)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * self.factor, lambda packed: packed):
            return super().forward(values)


def test_hooks_that_offload_are_not_judged_as_checkpointing() -> None:
    report = examined(Packing(), on_and_off)
    assert kinds(report) == []
    assert SkipKind.OWN_PACKING in {skip.kind for skip in report.skips}


def test_hooks_that_bring_back_something_else_are_the_cause() -> None:
    model = Packing()
    model.factor = 2.0
    report = examined(model, on_and_off)
    assert (kinds(report), causes(report)) == ([FaultKind.GRADIENT_VALUE], {CauseKind.OWN_PACKING})


class InOne(Toy):
    """A model with all blocks in one checkpoint."""

    def forward(self, values: Tensor) -> Any:
        return reentrant_or_not(super().forward, values, reentrant=False) if self.on else super().forward(values)


def test_blocks_that_are_recomputed_together_are_one_recompute() -> None:
    torch.manual_seed(0)
    assert verify(InOne(), torch.randn(4, 6, WIDTH), modes="non_reentrant", switch=on_and_off).modes[0].faults == ()


def replacing(model: Any, mode: Any) -> None:
    if mode is not None:
        model.blocks = nn.ModuleList(nn.Sequential(block) for block in model.blocks)


def test_a_switch_that_renames_parameters_is_refused() -> None:
    with pytest.raises(VerifyError, match="replaces modules"):
        examined(Toy(), replacing)


class OtherSecond(Checkpointed):
    def forward(self, values: Tensor) -> Any:
        result = super().forward(values)
        second = result.detach() * (2 if self.on else 1)
        return {"result": result, "second": second}


def test_an_output_with_other_values_is_a_fault_at_an_equal_loss() -> None:
    report = examined(OtherSecond(), on_and_off)
    assert [(fault.kind, fault.subjects) for fault in report.faults] == [(FaultKind.OUTPUT_VALUE, ("output second",))]


class Counting(Block):
    """A block whose recompute collects what its forward should have collected."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen.add_(1)
        return super().forward(values)


class Reentrant(Checkpointed):
    reentrant = True


def test_a_buffer_that_only_the_recompute_writes_is_a_fault() -> None:
    report = examined(Reentrant(Counting), on_and_off, "reentrant")
    assert kinds(report) == [FaultKind.BUFFER_LATE]


@pytest.mark.parametrize("momentum", [0.0, None])
def test_batches_that_are_counted_again_matter_without_a_momentum_alone(momentum: float | None) -> None:
    class Normed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.batch_norm = nn.BatchNorm1d(6, momentum=momentum)

        def forward(self, values: Tensor) -> Tensor:
            return super().forward(self.batch_norm(values))

    faults = kinds(examined(Checkpointed(Normed), on_and_off))
    assert faults == ([FaultKind.BUFFER_CHANGED] if momentum is None else [])


class Tracking(Block):
    def forward(self, values: Tensor) -> Tensor:
        TRACKER.setdefault("sum", torch.zeros(())).add_(values.detach().square().mean())
        return super().forward(values)


def test_a_global_variable_that_the_recompute_writes_again_is_a_fault() -> None:
    report = examined(Checkpointed(Tracking), on_and_off)
    assert [(fault.kind, fault.subjects) for fault in report.faults] == [
        (FaultKind.WRITTEN_AGAIN, (f"{__name__}.TRACKER",))
    ]


class Recompute(WithBackwardInside):
    """A custom checkpoint that runs the block again in the context `around`."""

    around: Callable[[nn.Module], AbstractContextManager[object]]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), Recompute.around(ctx.module):
            result = ctx.module(values)
        torch.autograd.backward(result, gradients)
        return values.grad, None


class Mine(Toy):
    def run(self, block: nn.Module, values: Tensor) -> Any:
        return Recompute.apply(values, block) if self.on else block(values)  # type: ignore[no-untyped-call]


@contextmanager
def under_autocast(_block: nn.Module) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16):
        yield


@contextmanager
def hooked(block: nn.Module) -> Iterator[None]:
    handle = block.register_forward_hook(lambda _module, _arguments, result: result * 2)
    try:
        yield
    finally:
        handle.remove()


class Moded(Block):
    mode = "plain"

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * (1 if self.mode == "plain" else 2)


@contextmanager
def doubled(block: Any) -> Iterator[None]:
    before, block.mode = block.mode, "doubled"
    try:
        yield
    finally:
        block.mode = before


@pytest.mark.parametrize(
    ("around", "cause"),
    [
        (under_autocast, CauseKind.OTHER_AUTOCAST),
        (hooked, CauseKind.OTHER_HOOKS),
        (doubled, CauseKind.OTHER_ATTRIBUTE),
    ],
)
def test_what_a_recompute_runs_under_is_named(
    around: Callable[[nn.Module], AbstractContextManager[object]], cause: CauseKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recompute, "around", staticmethod(around), raising=False)
    Moded.mode = "plain"
    model = Mine(Moded)
    for block in model.blocks:
        block.mode = "plain"  # type: ignore[assignment]
    report = examined(model, on_and_off)
    assert FaultKind.GRADIENT_VALUE in kinds(report)
    assert cause in causes(report)
    restored = examined(Checkpointed(Moded), on_and_off)
    assert (kinds(restored), causes(restored)) == ([], set())


class Late(Toy):
    """A model whose checkpointed functions look their block up when they run."""

    def forward(self, values: Tensor) -> Any:
        values = self.first(values)
        for block in self.blocks:
            values = reentrant_or_not(lambda x: block(x), values) if self.on else block(values)  # noqa: B023
        return values


def test_a_block_that_is_recomputed_in_the_place_of_others_is_the_cause() -> None:
    assert CauseKind.IN_THEIR_PLACE in causes(examined(Late(), on_and_off))


class Shared(Toy):
    """A model whose first block writes into a tensor that the others read."""

    class Reader(Block):
        def forward(self, values: Tensor, shared: Any = None) -> Tensor:
            if self.writes:
                shared.copy_(values)
            return super().forward(values + shared)

        writes = False

    reentrant = True

    def __init__(self) -> None:
        super().__init__(Shared.Reader)
        self.blocks[0].writes = True  # type: ignore[assignment]

    def forward(self, values: Tensor) -> Any:
        values = self.first(values)
        shared = torch.zeros_like(values, requires_grad=False)
        for block in self.blocks:
            run = reentrant_or_not if self.on else None
            values = run(block, values, shared, reentrant=True) if run else block(values, shared)
        return values


def test_a_tensor_that_a_block_writes_into_is_named() -> None:
    assert CauseKind.WRITTEN_ARGUMENT in causes(examined(Shared(), on_and_off, "reentrant"))


class WithDummy(Toy):
    """A model that opens its checkpoints, frozen ones too, with a dummy that needs a gradient."""

    def run(self, block: nn.Module, values: Tensor) -> Any:
        dummy = torch.zeros((), requires_grad=True)
        return reentrant_or_not(lambda _, x: block(x), dummy, values, reentrant=True) if self.on else block(values)


def test_a_recompute_without_requested_gradients_is_no_fault() -> None:
    model = WithDummy(depth=4)
    for module in (model.first, *model.blocks[:2]):
        module.requires_grad_(False)
    assert FaultKind.RECOMPUTE_COUNT not in kinds(examined(model, on_and_off, "reentrant"))


class Recording(nn.Module):
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None:
        self.given = gradient_checkpointing_kwargs


def test_the_options_of_a_training_are_kept_in_its_own_mode() -> None:
    model = Recording()
    vars(model)[FUNCTION] = partial(checkpoint, use_reentrant=False, debug=True)
    switch_checkpointing(model, "non_reentrant")
    assert model.given == {"use_reentrant": False, "debug": True}
    switch_checkpointing(model, "reentrant")
    assert model.given == {"use_reentrant": True}


class Towered(Model):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers[1:])
        self.tower = nn.ModuleList(layers[:1])

    def run_layers(self, hidden_states: Tensor) -> Tensor:
        return super().run_layers(self.tower[0](hidden_states))


def test_a_stack_that_is_off_where_another_is_on_is_a_fault() -> None:
    model = model_of(Layer, Layer, whole=Towered)
    inputs = torch.randn(2, 4, model.first.in_features, dtype=model.first.weight.dtype)
    switch_checkpointing(model, "non_reentrant")
    assert verify(model, inputs, modes="non_reentrant").modes[0].faults == ()
    vars(model.get_submodule("tower.0"))["gradient_checkpointing"] = False
    (fault,) = verify(model, inputs, modes="non_reentrant").modes[0].faults
    assert (fault.kind, fault.subjects) == (FaultKind.SWITCHED_OFF, ("tower.0",))
