"""The guard names each planted fault and is silent about healthy trainings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ckpt_surgery import GuardError, OptionError, SurgeryWarning, guard, wrap_blocks
from ckpt_surgery.guarding.coverage import Coverage
from ckpt_surgery.guarding.faults import CoverageCause, GuardFault, GuardFaultKind
from ckpt_surgery.guarding.guard import Guard
from ckpt_surgery.guarding.proof import BlockWitness, ProofStatus
from ckpt_surgery.guarding.results import MOST_RETRIES, CheckedStep
from ckpt_surgery.guarding.trained import UntrainedParameters
from ckpt_surgery.measure.model_hook import nothing
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.runtime.tools.containers import tensors
from tests.conftest import installed_major
from tests.measure.toys import Layer, Model, PlainLayer, SureLayer, model_of, values
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

both_modes = pytest.mark.parametrize("reentrant", [False, True])


def enable(model: Any, reentrant: bool = False) -> None:
    switch_checkpointing(model, "reentrant" if reentrant else "non_reentrant")


def enable_selectively(model: Any) -> None:
    """Checkpoint with torch's policy that keeps matrix products."""
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


Way = Callable[[Any], object]
ways = pytest.mark.parametrize(
    "way",
    [enable, partial(enable, reentrant=True), enable_selectively, wrap_blocks],
    ids=["non-reentrant", "reentrant", "selective", "wrapped"],
)


def train(model: nn.Module, steps: int = 4, between: Callable[[int], None] | None = None) -> list[float]:
    """Train for some steps, clearing the gradients after each; return the losses."""
    losses = []
    for place in range(steps):
        torch.manual_seed(place)
        loss = next(tensors(model(**values()))).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        if between:
            between(place)
        model.zero_grad()
    return losses


def tripled(module: nn.Module, given: Any, output: Tensor) -> Tensor:
    return output * 3


tripled.__module__ = "peft.hooks"  # a part of what a block computes


def kinds(watching: Guard) -> set[GuardFaultKind]:
    return {fault.kind for fault in watching.report().faults}


@ways
def test_a_healthy_training_is_proved_and_nothing_is_said(way: Way, recwarn: pytest.WarningsRecorder) -> None:
    model = model_of(Layer, SureLayer, Layer)
    way(model)
    with guard(model) as watching:
        train(model)
        report = watching.report()
    assert report.ok
    assert report.proved == len(report.blocks) == 3
    assert [row.counts for row in report.blocks] == [(1, 1)] * 3
    assert not [warning for warning in recwarn if warning.category is SurgeryWarning]


@both_modes
def test_losses_gradients_and_random_numbers_are_those_of_a_run_without_it(reentrant: bool) -> None:
    def run(guarded: bool) -> tuple[list[float], list[Tensor | None], Tensor]:
        torch.manual_seed(0)
        model = model_of(Layer, Layer)
        enable(model, reentrant)
        gradients: list[Tensor | None] = []
        watching = guard(model) if guarded else None
        losses = train(model, between=lambda _: gradients.extend(p.grad for p in model.parameters()))
        if watching is not None:
            watching.remove()
        return losses, gradients, torch.rand(2)

    (losses, gradients, drawn), (bare_losses, bare_gradients, bare_drawn) = run(True), run(False)
    assert losses == bare_losses
    assert all((a is None) == (b is None) for a, b in zip(gradients, bare_gradients, strict=True))
    both = zip(gradients, bare_gradients, strict=True)
    assert all(torch.equal(a, b) for a, b in both if a is not None and b is not None)
    assert torch.equal(drawn, bare_drawn)


@ways
def test_shared_parameters_add_up_gradients_in_the_unguarded_order(way: Way) -> None:
    class Uses(SureLayer):
        def forward(self, hidden_states: Tensor, states: Tensor) -> Tensor:  # type: ignore[override]
            return torch.tanh(self.linear(hidden_states) + states * self.linear(states)) + states.sin()

    class Shares(Model):
        def forward(self, values: Tensor) -> Any:
            hidden_states = states = self.first(values)
            skipped = []
            for layer in self.layers:
                hidden_states = layer(hidden_states, states)
                skipped.append(hidden_states)
            return self.last(torch.stack(skipped).prod(0) + hidden_states.exp())

    def run(guarded: bool) -> list[Tensor | None]:
        torch.manual_seed(0)
        model = model_of(*[Uses] * 5, whole=Shares)
        way(model)
        gradients: list[Tensor | None] = []
        watching = guard(model, every=1, on_fault="raise") if guarded else None
        train(model, 6, between=lambda _: gradients.extend(p.grad for p in model.parameters()))
        assert watching is None or watching.report().proved == len(model.layers)
        return gradients

    for watched, bare in zip(run(True), run(False), strict=True):
        assert watched is not None
        assert bare is not None
        assert torch.equal(watched, bare)


class Takes(SureLayer):
    """A layer that uses a tensor of the model that it gets by keyword."""

    def forward(self, hidden_states: Tensor, shared: Any = None) -> Tensor:
        return torch.tanh(self.linear(hidden_states) + shared.sin() * shared)


class Shares(Model):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.shared = nn.Parameter(torch.ones(4))

    def forward(self, values: Tensor) -> Any:
        hidden_states = self.first(values)
        for layer in self.layers:
            hidden_states = layer(hidden_states, shared=self.shared)
        return self.last(hidden_states)


def test_remove_leaves_nothing_behind() -> None:
    model = model_of(Layer, Layer)
    enable(model)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    watching = guard(model)
    train(model, 2)
    watching.remove()
    watching.remove()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(p._backward_hooks for p in model.parameters())


def test_a_plain_block_of_which_a_part_is_checkpointed_is_no_fault() -> None:
    class Parts(PlainLayer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = PlainLayer()

        def forward(self, hidden_states: Tensor) -> Tensor:
            made = super().forward(hidden_states)
            result: Tensor = torch.utils.checkpoint.checkpoint(self.inner, made, use_reentrant=False)
            return result

    model = model_of(Parts, Parts)
    model.gradient_checkpointing = True
    with guard(model, on_fault="raise") as watching:
        train(model)
        assert watching.report().proved == 2


@pytest.mark.parametrize("on_fault", ["raise", "collect"])
def test_wrong_gradients_are_reported_by_parameter(on_fault: Literal["raise", "collect"]) -> None:
    class Counting(SureLayer):
        runs = 0

        def forward(self, hidden_states: Tensor) -> Tensor:
            type(self).runs += 1
            return torch.tanh(self.linear(hidden_states) * type(self).runs)

    model = model_of(Counting, SureLayer)
    enable(model)
    watching = guard(model, on_fault=on_fault)
    if on_fault == "raise":
        with pytest.raises(GuardError, match=r"block layers\.0 got other gradients .*linear\.(weight|bias)"):
            train(model)
    else:
        train(model)
        assert watching.report().blocks[0].proof.status is ProofStatus.WRONG
        assert watching.report().blocks[1].proof.status is ProofStatus.PROVED
    watching.remove()


def test_gradients_that_reentrant_checkpointing_loses_are_reported() -> None:
    class Pixels(Model):
        def forward(self, values: Tensor) -> Any:
            return self.last(self.run_layers(values))  # nothing that goes into the first block requires gradient

    model = model_of(SureLayer, SureLayer, whole=Pixels)
    del model.first
    enable(model, reentrant=True)
    with guard(model, on_fault="collect", patience=3) as watching:
        train(model)
        report = watching.report()
    assert [row.proof.status for row in report.blocks] == [ProofStatus.CUT_OFF] * 2
    assert [(fault.kind, fault.subjects) for fault in report.faults] == [
        (GuardFaultKind.CUT_OFF, ("layers.0",)),
        (GuardFaultKind.CUT_OFF, ("layers.1",)),
    ], "that their parameters get no gradient is said by that"
    (line,) = [line for line in str(report).splitlines() if "gradient" in line and "fault" in line]
    assert line.endswith("or use use_reentrant=False; likewise layers.1")
    assert "without gradient" not in str(report)


def test_of_parameters_that_fsdp1_shards_nothing_is_said_but_that() -> None:
    model = model_of(SureLayer, SureLayer)
    enable(model)
    for parameter in model.parameters():
        cast(Any, parameter)._fsdp_flattened = True  # as torch marks them
    views = cast(Any, model.layers[0]).linear.weight.split(2)
    with torch.no_grad():
        views[0].add_(0)  # torch writes into the flat parameter, behind which it makes them anew
    cast(Any, model.layers[0]).part = views[0]
    with guard(model, on_fault="collect", patience=1) as watching:
        train(model)
        report = watching.report()
    assert {row.proof.status for row in report.blocks} == {ProofStatus.FLATTENED}
    assert (report.faults, report.without_gradient, report.failure) == ((), (), "")
    count = len(list(model.parameters()))
    assert f"FSDP1 shards {count} parameters: their gradients are not watched" in str(report)


@ways
def test_a_tensor_that_blocks_make_use_and_hand_on_is_no_fault(way: Way) -> None:
    class Biased(SureLayer):
        def forward(self, hidden_states: Tensor, bias: Tensor | None = None) -> Any:
            if bias is None:
                bias = self.linear(hidden_states)
            return torch.tanh(self.linear(hidden_states) + bias), bias

    class Handed(Model):
        def forward(self, values: Tensor) -> Any:
            hidden_states, bias = self.first(values), None
            for layer in self.layers:
                hidden_states, bias = layer(hidden_states, bias)
            return self.last(hidden_states)

    model = model_of(Biased, Biased, Biased, whole=Handed)
    way(model)
    with guard(model, on_fault="raise") as watching:
        train(model)
        assert watching.report().proved == 3


class Writes(SureLayer):
    """A layer that uses a dictionary's keys and values, which the first block writes."""

    def forward(self, hidden_states: Tensor, shared: dict[str, Any] | None = None, first: bool = False) -> Tensor:
        assert shared is not None
        if first:
            keys = torch.tanh(self.linear(hidden_states))
            shared["keys"] = keys, keys
        keys, values = shared["keys"]
        return torch.tanh(hidden_states + keys * values)


class Sharing(Model):
    """A model that gives all blocks one dictionary, which `before` may have filled."""

    before: Mapping[str, Any] = {}

    def forward(self, values: Tensor) -> Any:
        hidden_states = self.first(values)
        shared = dict(self.before)
        for place, layer in enumerate(self.layers):
            hidden_states = layer(hidden_states, shared=shared, first=place == 0)
        return self.last(hidden_states)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("filled", [False, True])
def test_what_a_block_leaves_in_a_shared_dictionary_is_proved_too(wrapped: bool, filled: bool) -> None:
    model: Any = model_of(Writes, Writes, whole=Sharing)
    model.before = {"keys": (torch.ones(2, 4), torch.ones(2, 4))} if filled else {}
    (wrap_blocks if wrapped else enable)(model)
    with guard(model, on_fault="raise") as watching:
        train(model)
        assert [row.proof.status for row in watching.report().blocks] == [ProofStatus.PROVED] * 2


@pytest.mark.parametrize("hooked", [False, True])
def test_wrong_gradients_of_a_block_that_leaves_something_are_reported(hooked: bool) -> None:
    class Grows(Writes):
        runs = 0

        def forward(self, hidden_states: Tensor, shared: dict[str, Any] | None = None, first: bool = False) -> Tensor:
            type(self).runs += 1
            return super().forward(hidden_states * type(self).runs, shared, first)

    model = model_of(Grows, Writes, whole=Sharing)
    enable(model)
    if hooked:
        model.layers[0].register_forward_hook(nothing)
    with guard(model, on_fault="collect") as watching:
        train(model)
    assert watching.report().blocks[0].proof.status is ProofStatus.WRONG


class Nested(SureLayer):
    def forward(self, hidden_states: Tensor, before: Tensor | None = None) -> Any:
        made = torch.tanh(self.linear(hidden_states))
        return (made, (made * made,)) if before is None else (made + before, (made,))


class Handed(Model):
    def forward(self, values: Tensor) -> Any:
        hidden_states, (before,) = self.layers[0](self.first(values))
        hidden_states, _ = self.layers[1](hidden_states, before)
        return self.last(hidden_states)


@both_modes
@pytest.mark.parametrize(("block", "whole"), [(Writes, Sharing), (Nested, Handed), (Takes, Shares)])
def test_what_reentrant_checkpointing_leaves_out_is_not_proved_or_a_fault(
    block: type[Layer], whole: type[Model], reentrant: bool
) -> None:
    # What it leaves in a dictionary or a nested result has no graph, and keywords get their gradient around it.
    model = model_of(block, block, whole=whole)
    enable(model, reentrant)
    with guard(model, on_fault="raise") as watching:
        train(model)
        report = watching.report()
    expected = ProofStatus.REENTRANT if reentrant else ProofStatus.PROVED
    assert [row.proof.status for row in report.blocks] == [expected] * 2
    told = "not proved: layers.0, layers.1: checkpointed in reentrant mode by its library"
    assert (told in str(report)) is reentrant


@pytest.mark.parametrize("around", [False, True], ids=["by the layer", "around the layer"])
def test_parameters_of_such_a_block_that_differ_are_a_fault(around: bool) -> None:
    class Drifts(Takes):
        runs = 0

        def forward(self, hidden_states: Tensor, shared: Any = None) -> Tensor:
            type(self).runs += 1
            return super().forward(hidden_states * type(self).runs, shared)

    class Around(Shares):
        def forward(self, values: Tensor) -> Any:
            hidden_states = self.first(values)
            for layer in self.layers:
                run = partial(layer, shared=self.shared)
                hidden_states = torch.utils.checkpoint.checkpoint(run, hidden_states, use_reentrant=True)
            return self.last(hidden_states)

    model = model_of(Drifts, Takes, whole=Around if around else Shares)
    if not around:
        enable(model, reentrant=True)
    with guard(model, on_fault="collect") as watching:
        train(model)
        report = watching.report()
    assert [row.proof.status for row in report.blocks] == [ProofStatus.WRONG, ProofStatus.REENTRANT]
    assert [fault.subjects[0] for fault in report.faults] == ["layers.0"]


@both_modes
def test_a_hook_that_keeps_what_a_block_returns_for_the_loss_is_no_fault(reentrant: bool) -> None:
    model = model_of(Layer, SureLayer, Layer)
    kept: list[Tensor] = []
    enable(model, reentrant)
    model.layers[1].register_forward_hook(lambda _, args, output: kept.extend(tensors(output)))
    with guard(model, on_fault="collect") as watching:
        for _ in range(3):
            loss = next(tensors(model(**values()))).sum() + kept.pop().square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
    report = watching.report()
    assert [row.proof.status for row in report.blocks] == [ProofStatus.PROVED, ProofStatus.HOOKED, ProofStatus.PROVED]
    assert not report.faults


@both_modes
def test_library_hooks_that_the_backward_removes_are_there_in_a_proof(reentrant: bool) -> None:
    model = model_of(SureLayer, SureLayer)
    enable(model, reentrant)
    with guard(model, on_fault="collect") as watching:
        for _ in range(2):
            scaling = cast(SureLayer, model.layers[0]).linear.register_forward_hook(tripled)
            take_off = model.first.weight.register_post_accumulate_grad_hook
            take_off(lambda _, scaling=scaling: scaling.remove())  # type: ignore[no-untyped-call]
            next(tensors(model(**values()))).square().mean().backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
        report = watching.report()
    assert [row.proof.status for row in report.blocks] == [ProofStatus.PROVED] * 2
    assert not report.faults


def test_what_changes_a_block_after_its_recompute_is_no_fault() -> None:
    class Scaled(SureLayer):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return torch.tanh(self.linear(hidden_states) * factor[0])

    factor = [1.0]
    model = model_of(Scaled, SureLayer)
    enable(model)
    grow = model.first.weight.register_post_accumulate_grad_hook
    grow(lambda _: factor.append(factor.pop() + 1))  # type: ignore[no-untyped-call]
    with guard(model, on_fault="collect") as watching:
        train(model)
        report = watching.report()
    assert [row.proof.status for row in report.blocks] == [ProofStatus.NOT_REPEATABLE, ProofStatus.PROVED]
    assert not report.faults


@both_modes
@pytest.mark.skipif(installed_major("transformers") == 4, reason="transformers 4 keeps hidden states without hooks")
def test_a_block_whose_input_a_hook_keeps_for_the_loss_is_proved(reentrant: bool) -> None:
    model = llama(2)
    enable(model, reentrant)
    model.enable_input_require_grads()
    with guard(model, on_fault="collect") as watching:
        for _ in range(2):
            hidden = model(**tokens(), output_hidden_states=True, use_cache=False).hidden_states
            sum(state.square().sum() for state in hidden).backward()
            model.zero_grad()
    report = watching.report()
    assert {row.proof.status for row in report.blocks} == {ProofStatus.PROVED}
    assert not report.faults


@pytest.mark.parametrize("asked", ["input", "last"])
def test_gradients_a_step_skips_are_no_fault_and_are_proved_later(asked: str) -> None:
    model: Any = model_of(SureLayer, SureLayer)
    enable(model)
    with guard(model, on_fault="raise") as watching:
        for number in range(6):
            given = {name: value.clone().requires_grad_() for name, value in values().items()}
            loss = next(tensors(model(**given))).square().mean()
            wanted = [*given.values(), *([model.layers[1].linear.bias] if asked == "last" else [])]
            if number % 2:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                torch.autograd.grad(loss, wanted, create_graph=number == 2)
        assert {row.proof.status for row in watching.report().blocks} == {ProofStatus.PROVED}


def test_steps_after_a_backward_that_raised_are_seen() -> None:
    def raising(_: Tensor) -> None:
        raise ValueError("too large")

    model: Any = model_of(SureLayer, SureLayer)
    enable(model)
    with guard(model, on_fault="raise") as watching:
        handle = model.layers[0].linear.weight.register_hook(raising)
        for _ in range(2):
            with pytest.raises(ValueError, match="too large"):
                next(tensors(model(**values()))).sum().backward()  # type: ignore[no-untyped-call]
        handle.remove()
        train(model, 3)
        assert (watching.steps, watching.report().proved) == (3, 2)


def test_parameters_without_gradient_are_reported_after_the_patience() -> None:
    model = model_of(SureLayer, SureLayer)
    model.adapter = nn.Linear(4, 4).double()
    enable(model)
    with guard(model, on_fault="collect", patience=3) as watching:
        train(model, 2)
        assert not kinds(watching)
        train(model, 1)
        (fault,) = watching.report().faults
    assert fault == GuardFault(GuardFaultKind.UNTRAINED, ("adapter.weight", "adapter.bias"), steps=3)
    assert str(fault).startswith("2 parameters got no gradient in 3 steps: adapter.weight, adapter.bias; freeze")


def test_nothing_waits_for_a_device_between_checked_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(SureLayer, SureLayer)
    model.adapter = nn.Linear(4, 4).double()
    enable(model)
    waits: list[int] = []
    look = UntrainedParameters._drop_those_with_gradients

    def noted(self: UntrainedParameters) -> None:
        waits.append(watching.steps)
        look(self)

    monkeypatch.setattr(UntrainedParameters, "_drop_those_with_gradients", noted)
    with guard(model, on_fault="collect", every=8, patience=12) as watching:
        train(model, 20)
    assert waits == [1, 2, 3, 9, 12], "after the first three steps, the ninth, and the last of the patience"


def test_the_same_fault_of_equal_blocks_is_reported_once_with_their_names(recwarn: pytest.WarningsRecorder) -> None:
    model = model_of(*[Counting] * 6)
    enable(model)
    with guard(model) as watching:
        train(model, 7)
    report = watching.report()
    assert len(report.faults) == 6
    (fault,) = report.told
    assert fault.likewise == tuple(f"layers.{place}" for place in range(1, 6))
    assert str(report).count("fault:") == 1
    assert "once more in its recompute" in str(fault)
    assert str(fault).endswith("; likewise layers.1, layers.2, layers.3 and 2 more")
    assert len([warning for warning in recwarn if warning.category is SurgeryWarning]) == 1


class Counting(SureLayer):
    calls = 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.linear(hidden_states))


def test_wrong_gradients_of_equal_blocks_are_reported_by_the_largest_error() -> None:
    kind = GuardFaultKind.WRONG_GRADIENTS
    faults = [GuardFault(kind, (f"layers.{place}", f"w{place}"), error=place / 10) for place in range(3)]
    other = GuardFault(kind, ("encoder.blocks.1", "w0"), error=1)
    first, second = GuardFault.together([*faults, other])
    assert (first.subjects, first.likewise, first.error) == (("layers.0", "w0"), ("layers.1", "layers.2"), 0.2)
    assert second == other


def test_steps_that_look_alike_are_given_up_and_those_between_are_seen() -> None:
    model = model_of(Layer, Layer)
    enable(model)
    with guard(model) as watching:
        first = next(tensors(model(**values())))
        second = next(tensors(model(**values())))
        (first + second).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            model(**values())
        train(model, 3)
        assert watching.report().proved == 2
        assert watching.report().ok


@both_modes
@pytest.mark.parametrize("first", [False, True])
def test_a_forward_without_gradients_in_a_step_is_no_part_of_it(reentrant: bool, first: bool) -> None:
    model = model_of(Layer, Layer)
    enable(model, reentrant)
    with guard(model) as watching:
        for _ in range(3):
            loss = None if first else next(tensors(model(**values()))).sum()
            with torch.no_grad():
                model(**values())
            loss = next(tensors(model(**values()))).sum() if loss is None else loss
            loss.backward()  # type: ignore[no-untyped-call]
        report = watching.report()
    assert (report.steps, report.proved) == (3, 2)
    assert [row.counts for row in report.blocks] == [(1, 1)] * 2


def test_a_surgery_removes_its_guards_hooks_in_a_loss_of_many_forwards() -> None:
    def run(guarded: bool) -> list[Tensor | None]:
        torch.manual_seed(0)
        model = model_of(SureLayer, SureLayer)
        wrap_blocks(model)
        watching = guard(model, on_fault="raise", every=1) if guarded else None
        for _ in range(5):
            loss = sum(next(tensors(model(**values()))).square().mean() for _ in range(2))
            loss.backward()  # type: ignore[union-attr]
        if watching is not None:
            assert watching.steps > 1
            assert watching.report().ok
        return [parameter.grad for parameter in model.parameters()]

    for watched, bare in zip(run(True), run(False), strict=True):
        assert watched is not None
        assert bare is not None
        assert torch.equal(watched, bare)


def test_a_loss_of_several_forwards_is_one_step_from_the_second_time_on() -> None:
    model = model_of(Layer, Layer)
    enable(model)
    model.layers[1].eval()
    with guard(model, on_fault="collect") as watching:
        for _ in range(4):
            pair = [next(tensors(model(**values()))) for _ in range(2)]
            sum(pair).sum().backward()  # type: ignore[union-attr]
        report = watching.report()
    assert report.steps == 3
    assert [row.counts for row in report.blocks] == [(2, 2), (2, 0)]
    assert [fault.cause for fault in report.faults] == [CoverageCause.EVALUATION]


def test_only_the_first_steps_and_every_nth_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []

    class Noted(Coverage):
        def __init__(self, *arguments: Any) -> None:
            checked.append(watching.steps)
            super().__init__(*arguments)

    monkeypatch.setattr(sys.modules[CheckedStep.__module__], "Coverage", Noted)
    model = model_of(Layer, Layer)
    enable(model)
    watching = guard(model, every=4)
    train(model, 10)
    assert checked == [0, 1, 2, 4, 8]
    watching.remove()


@both_modes
def test_blocks_are_proved_once_a_scaler_has_found_its_scale(reentrant: bool) -> None:
    model = llama(2, use_cache=False).float().train()
    inputs = {**tokens(), "labels": tokens()["input_ids"]}
    enable(model, reentrant)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, growth_interval=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    overflows = 0
    with guard(model, on_fault="raise", every=1) as watching:
        for _ in range(24):
            with torch.autocast("cpu", torch.float16):
                loss = model(**inputs).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            overflows += scaler.get_scale() < scale
            optimizer.zero_grad()
        assert watching.report().proved == 2
    assert overflows > 4, "also after the blocks were proved, as the scale grows"


def test_a_gradient_that_is_finite_in_the_block_alone_only_is_reported() -> None:
    class Once(SureLayer):
        runs = 0

        def forward(self, hidden_states: Tensor) -> Tensor:
            type(self).runs += 1
            values = self.linear(hidden_states)
            return torch.tanh(values * (float("nan") if type(self).runs == 2 else 1.0))

    model = model_of(Once, SureLayer)
    enable(model)
    with guard(model, on_fault="collect") as watching:
        train(model, 1)
        (fault,) = watching.report().faults
    assert fault.kind is GuardFaultKind.WRONG_GRADIENTS
    assert fault.subjects[0] == "layers.0"
    assert fault.error == 1.0


def test_gradients_that_are_never_finite_are_no_fault_and_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Noted(BlockWitness):
        def __init__(self, name: str, *arguments: Any) -> None:
            tried.append(name)
            super().__init__(name, *arguments)

    monkeypatch.setattr(sys.modules[CheckedStep.__module__], "BlockWitness", Noted)
    model = model_of(Layer, SureLayer)
    enable(model)
    with guard(model, on_fault="collect") as watching:
        for _ in range(30):
            (next(tensors(model(**values()))).sum() * float("inf")).backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
        report = watching.report()
    assert report.ok
    assert {row.proof.status for row in report.blocks} == {ProofStatus.NOT_FINITE}
    assert tried == ["layers.0"] * MOST_RETRIES + ["layers.1"]


def test_a_block_that_a_later_step_leaves_out_stays_proved() -> None:
    class Drops(Model):
        left_out = False

        def forward(self, values: Tensor) -> Any:
            hidden_states = self.first(values)
            for layer in list(self.layers)[self.left_out :]:
                hidden_states = layer(hidden_states)
            return self.last(hidden_states)

    model: Any = model_of(SureLayer, SureLayer, whole=Drops)
    enable(model)
    with guard(model, on_fault="collect", every=1) as watching:
        train(model, 2)
        model.left_out = True
        train(model, 4)
        assert watching.report().proved == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [({"every": 0}, "every is 0"), ({"patience": 0}, "patience is 0"), ({"on_fault": "shout"}, "on_fault is 'shout'")],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        guard(model_of(Layer, Layer), **options)


def test_compiled_models_and_things_that_are_none_are_refused() -> None:
    with pytest.raises(GuardError, match="is compiled"):
        guard(torch.compile(model_of(Layer, Layer), backend="eager"))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="of type int"):
        guard(3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_rank")
def test_the_model_inside_ddp_is_guarded() -> None:
    model = model_of(Layer, Layer)
    enable(model)
    parallel = DistributedDataParallel(model)
    with guard(parallel, on_fault="raise") as watching:
        train(parallel)
        assert watching.report().proved == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_steps_in_evaluation_mode_count_and_are_reported_at_any_time(frozen: bool) -> None:
    model = model_of(SureLayer, SureLayer)
    enable(model)
    model.layers.requires_grad_(not frozen)
    with guard(model, on_fault="collect") as watching:
        train(model, 5)
        train(model.eval(), 2)
        report = watching.report()
    assert report.steps == 7
    (fault,) = report.faults
    assert (fault.kind, fault.cause) == (GuardFaultKind.NOT_RECOMPUTED, CoverageCause.EVALUATION)
    assert fault.subjects == ("layers.0", "layers.1")


def test_the_table_of_a_surgery_shows_what_the_current_mode_checkpoints() -> None:
    model = model_of(SureLayer, SureLayer).eval()
    surgery = wrap_blocks(model)
    assert "0 of 2 blocks checkpointed" in str(surgery)
    assert "in evaluation mode: call model.train()" in str(surgery)
    model.train()
    assert "2 of 2 blocks checkpointed" in str(surgery)
    assert "evaluation" not in str(surgery)


def test_an_evaluation_between_forward_and_backward_is_no_step() -> None:
    model = model_of(SureLayer)
    enable(model)
    with guard(model) as watching:
        loss = model(**values())[0].sum()
        model.eval()(**values())
        model.train()
        loss.backward()
        report = watching.report()
    assert (report.steps, report.ok) == (1, True)
