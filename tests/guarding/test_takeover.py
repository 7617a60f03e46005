"""`run` on the models of a script, even those that are gone or checkpoint themselves."""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast
from weakref import ref

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._composable.checkpoint_activation import checkpoint as composable_checkpoint
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.guarding.asked_options import is_asked
from ckpt_surgery.guarding.faults import CoverageCause
from ckpt_surgery.guarding.guard import GuardOptions
from ckpt_surgery.guarding.proof import ProofStatus
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
from ckpt_surgery.guarding.trained_model import Trained
from ckpt_surgery.measure.surgical_blocks import has_surgery
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.surgery.surgery import surgeries_in
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.torch_names import CHECKPOINT_GENERATOR
from tests.guarding.test_guard import train
from tests.measure.toys import WIDTH, PlainLayer, SureLayer, model_of, values
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


@contextmanager
def running(options: TakeoverOptions, say: Callable[[str], None] = print) -> Iterator[Takeover]:
    """Look at what is trained inside, as a run does."""
    takeover = Takeover(options, say)
    takeover.install()
    try:
        yield takeover
    finally:
        takeover.remove()


@pytest.mark.parametrize("wrap", [True, False])
def test_a_model_is_gone_and_its_report_is_kept(wrap: bool) -> None:
    with running(TakeoverOptions(wrap)) as takeover:
        for layers in (2, 3):
            model = model_of(*[SureLayer] * layers)
            train(model, 4)
            last, model = ref(model), model_of(SureLayer)
            gc.collect()
            assert last() is None
    assert [trained.name for trained in takeover.trained] == ["Model", "Model"]
    for layers, trained in zip((2, 3), takeover.trained, strict=True):
        assert trained.report is not None
        assert (trained.report.steps, len(trained.report.blocks)) == (4, layers)
        assert (f"{layers} of {layers} blocks checkpointed" in trained.table) == wrap
        assert trained.surgery is None


def test_a_model_that_cannot_be_guarded_keeps_what_was_said_of_it() -> None:
    with running(TakeoverOptions(wrap=False), lambda _: None) as takeover:
        model = model_of(SureLayer)
        vars(model.layers[0])["_orig_mod"] = None  # as compiled ones have
        train(model, 1)
    (trained,) = takeover.trained
    assert (trained.report, trained.table) == (None, "")
    assert "is compiled" in trained.problems[0]


class Own(nn.Module):
    """A model that checkpoints its blocks itself, or none."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(PlainLayer() for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values)
        for block in self.blocks:
            values = self.run(block, values)
        return values


class OwnFunction(torch.autograd.Function):
    """A checkpoint function that is not torch's."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, values: Tensor) -> Tensor:
        ctx.block, ctx.values = block, values.detach()
        with torch.no_grad():
            return cast("Tensor", block(values))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None]:
        values = ctx.values.requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.block(values), gradients[0])
        return None, values.grad


def looked_at(action: Callable[[], Any], wrap: bool | None = None) -> list[Trained]:
    """Return what a run says of what happens in `action`."""
    takeover = Takeover(TakeoverOptions(wrap), print)
    takeover.install()
    try:
        action()
    finally:
        takeover.search.undo()
        takeover.run_through.undo()
    return takeover.trained


def taken(model: nn.Module, steps: int = 4, wrap: bool | None = None, **kinds: Any) -> Trained:
    """Return what a run says of a model trained for some steps."""
    (trained,) = looked_at(lambda: train(model.double(), steps, **kinds), wrap)
    return trained


def switched(model: Any, on: bool) -> None:
    (model.gradient_checkpointing_enable if on else model.gradient_checkpointing_disable)()


def line_of(place: str) -> str:
    """Return the text of a line of this file."""
    file, _, line = place.rpartition(":")
    assert file == __file__
    return Path(file).read_text(encoding="utf-8").split("\n")[int(line) - 1].strip()


def plainly(block: nn.Module, values: Tensor) -> Tensor:
    return cast("Tensor", block(values))


def reentrantly(block: nn.Module, values: Tensor) -> Any:
    return checkpoint(block, values, use_reentrant=True)


@pytest.mark.parametrize("wrap", [None, False])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_model_that_checkpoints_by_itself_is_watched_and_its_line_named(reentrant: bool, wrap: bool | None) -> None:
    trained = taken(Own(reentrantly if reentrant else partial(checkpoint, use_reentrant=False)), wrap=wrap)
    assert trained.said == [f"Own checkpoints by itself at {trained.place}"]
    assert ("checkpoint(block, values" if reentrant else "self.run(block") in line_of(trained.place)
    assert trained.report is not None
    assert trained.report.steps == (3 if wrap is None else 4)
    assert [block.counts for block in trained.report.blocks] == [(1, 1)] * 3
    assert trained.report.ok


def test_a_function_that_is_not_torchs_is_seen_by_what_it_recomputes() -> None:
    trained = taken(Own(OwnFunction.apply), 5)
    assert line_of(trained.place) == "torch.autograd.backward(ctx.block(values), gradients[0])"
    assert trained.said == [f"Own checkpoints by itself at {trained.place}"]
    assert trained.report is not None
    assert [block.counts for block in trained.report.blocks] == [(1, 1)] * 3
    assert trained.report.proved == 3


class Dropping(PlainLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.dropout(super().forward(hidden_states), 0.5, True)


class InItself(Dropping):
    """A block that checkpoints itself, with a function that adds to gradients and does not restore generators."""

    def forward(self, hidden_states: Tensor) -> Any:
        return OwnFunction.apply(super().forward, hidden_states)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("wrap", [None, False])
def test_a_function_that_does_not_restore_generators_is_reported(wrap: bool | None) -> None:
    model = Own(OwnFunction.apply)
    model.blocks = nn.ModuleList(Dropping() for _ in range(2))
    report = taken(model, wrap=wrap).report
    assert report is not None
    assert {fault.cause for fault in report.faults} == {CoverageCause.DRAWN_ANEW}


def test_a_block_that_checkpoints_itself_is_unproved_and_trains_unchanged() -> None:
    def train_alone() -> list[Tensor]:
        torch.manual_seed(0)
        model = Own(plainly).double()
        model.blocks = nn.ModuleList(InItself() for _ in range(3)).double()
        for _ in range(3):
            model(torch.ones(2, WIDTH, dtype=torch.float64)).square().mean().backward()
        return [cast("Tensor", parameter.grad) for parameter in model.parameters()] + [torch.rand(1)]

    bare, watched = train_alone(), []
    (trained,) = looked_at(lambda: watched.extend(train_alone()), wrap=False)
    assert all(map(torch.equal, bare, watched))
    assert trained.report is not None
    assert trained.report.proved == 0


@pytest.mark.parametrize("wrap", [None, False, True])
def test_a_compiled_block_in_the_scripts_checkpoint_trains_unchanged(wrap: bool | None) -> None:
    model = Own(lambda block, given: checkpoint(fast[block], given, use_reentrant=False))
    fast = {block: torch.compile(block, backend="eager") for block in model.blocks}
    trained = taken(model, wrap=wrap)
    assert trained.said == [f"Own checkpoints by itself at {trained.place}"]
    assert "checkpoint(fast[block]" in line_of(trained.place)
    assert trained.report is not None
    assert trained.report.ok


@pytest.mark.parametrize("wrap", [None, False])
def test_what_the_script_checkpoints_is_watched_whatever_it_is(wrap: bool | None) -> None:
    pairs = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]

    class InSegments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pairs = nn.Linear(WIDTH, WIDTH), nn.Sequential(*pairs)

        def forward(self, values: Tensor) -> Any:
            first = self.first(values)
            return checkpoint_sequential(self.pairs, 3, first, use_reentrant=False)  # type: ignore[no-untyped-call]

    trained = taken(InSegments(), 5, wrap)
    assert trained.report is not None
    assert [block.counts for block in trained.report.blocks] == [(1, 1), (1, 1), (1, 0)]
    assert (trained.report.proved, trained.report.ok) == (3, True)


@pytest.mark.parametrize("outside", [False, True])
def test_a_weight_that_autocast_casts_once_for_several_uses_is_no_fault(outside: bool) -> None:
    model = Own(lambda block, given: checkpoint(block, block.linear(given) if outside else given, use_reentrant=False))
    for block in [] if outside else model.blocks:  # used twice inside of the block instead
        cast("Any", block).linear.register_forward_hook(lambda linear, _, made: F.linear(made, linear.weight))
    for block in model.blocks:
        for hook in list(cast("Any", block).linear._forward_hooks.values()):
            hook.__module__ = "peft.hooks"  # a part of what a block computes
    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0))

    def training() -> None:
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(inputs).float().square().mean()
            loss.backward()

    (trained,) = looked_at(training)
    assert trained.report is not None
    assert (trained.report.proved, trained.report.faults) == (3, ())


def test_what_runs_before_its_model_does_is_no_model() -> None:
    model = Own(partial(checkpoint, use_reentrant=False))
    model.first = nn.utils.parametrizations.weight_norm(model.first)
    before = looked_at(lambda: (model.first(torch.ones(2, WIDTH)), train(model.double())), wrap=False)
    assert [trained.name for trained in before] == ["Own"]


def test_what_a_block_checkpoints_in_itself_is_watched_in_its_place() -> None:
    class InParts(PlainLayer):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Sequential(nn.Linear(WIDTH, WIDTH))

        def forward(self, values: Tensor) -> Tensor:
            return cast("Tensor", checkpoint(self.last, super().forward(values), use_reentrant=False)).tanh()

    model = Own(plainly)
    model.blocks = nn.ModuleList(InParts() for _ in range(3))
    report = taken(model, wrap=False).report
    assert report is not None
    assert [(block.name, block.counts) for block in report.blocks] == [(f"blocks.{n}.last", (1, 1)) for n in range(3)]


def test_a_second_backward_through_an_old_forward_is_no_second_switch() -> None:
    model = Own(partial(checkpoint, use_reentrant=False)).double()
    real = torch.ones(2, WIDTH, dtype=torch.float64, requires_grad=True)

    def penalised() -> None:
        for _ in range(3):
            score = model(real).sum()
            (gradient,) = torch.autograd.grad(score, real, create_graph=True)
            (model(real.detach() + 1).sum() - score + gradient.square().sum()).backward()

    (trained,) = looked_at(penalised)
    assert trained.report is not None
    assert trained.report.faults == ()


def test_a_run_of_one_step_is_not_said_to_train_without_checkpointing() -> None:
    (said,) = taken(Own(reentrantly), 1).said
    assert said.startswith("Own checkpoints by itself at ")
    assert said.endswith("and ended before it was watched")


def test_only_what_nobody_recomputes_trains_without_checkpointing() -> None:
    trained = taken(Own(plainly))
    assert trained.said == ["Own trained without checkpointing; --wrap checkpoints it"]
    assert trained.report is None


def test_a_model_that_is_only_looked_at_and_never_checkpointed_is_reported() -> None:
    trained = taken(Own(plainly), wrap=False)
    assert trained.report is not None
    assert trained.report.recomputed_nothing
    assert trained.said == ["Own was not checkpointed: no block of it was recomputed; --wrap checkpoints it"]


def test_the_composable_checkpoint_of_torch_is_named_and_proved() -> None:
    model = Own(plainly)
    for block in model.blocks:
        composable_checkpoint(block)
    trained = taken(model, 6)
    assert trained.said == ["Own checkpoints by itself at torch.distributed._composable.checkpoint_activation"]
    assert trained.report is not None
    assert [block.counts for block in trained.report.blocks] == [(1, 1)] * 3
    assert trained.report.proved == 3


class Within(PlainLayer):
    """A block that checkpoints a part of itself."""

    def forward(self, values: Tensor) -> Tensor:
        return cast("Tensor", checkpoint(super().forward, values, use_reentrant=False))


LEFT: dict[str, Callable[..., Any]] = {
    "a function of the script": lambda block, values: checkpoint(lambda x: block(x), values, use_reentrant=False),
    "a forward of the class": lambda block, values: checkpoint(
        partial(type(block).forward, block), values, use_reentrant=False
    ),
    "contexts of its own": lambda block, values: checkpoint(
        block, values, use_reentrant=False, context_fn=lambda: (nullcontext(), nullcontext())
    ),
    "inside of a block": plainly,
}


@pytest.mark.parametrize("how", LEFT)
def test_an_unrecognised_checkpoint_never_nests_with_ours(how: str) -> None:
    model = Own(LEFT[how])
    if how == "inside of a block":
        model.blocks = nn.ModuleList(Within() for _ in range(3))
    runs: list[nn.Module] = []
    for block in model.blocks:
        block.get_submodule("linear").register_forward_pre_hook(lambda module, _: runs.append(module))
    trained = taken(model, 4, wrap=True)
    assert len(runs) == 4 * 3 * 2
    assert trained.checkpoints_itself
    assert trained.replaced == ""
    assert trained.table == ""
    assert not has_surgery(model)


TAKEN: dict[str, Callable[..., Any]] = {
    "reentrant": reentrantly,
    "non-reentrant": lambda block, values: checkpoint(block, values, use_reentrant=False),
    "a bound call": lambda block, values: checkpoint(block.__call__, values, use_reentrant=False),
    "a bound forward": lambda block, values: checkpoint(block.forward, values, use_reentrant=True),
}


@pytest.mark.parametrize("how", TAKEN)
def test_wrapping_takes_the_place_of_a_checkpoint_of_exactly_one_block(how: str) -> None:
    model, method = Own(TAKEN[how]).double(), CheckpointFunction.apply
    bare = copy.deepcopy(model)
    (trained,) = looked_at(lambda: train(model, 4), wrap=True)
    train(bare, 4)
    assert "checkpoint(block" in line_of(trained.replaced)
    assert trained.said == [
        f"Own is checkpointed by the script: --wrap takes the place of the call at {trained.replaced}"
    ]
    assert "3 of 3 blocks checkpointed, non-reentrant" in trained.table
    assert trained.report is not None
    assert [block.counts for block in trained.report.blocks] == [(1, 1)] * 3
    assert trained.report.ok
    assert trained.report.proved == (0 if how == "a bound forward" else 3)  # no hook of the block runs
    assert all(map(torch.equal, model.parameters(), bare.parameters()))
    assert CheckpointFunction.apply == method
    assert vars(torch.utils.checkpoint)[CHECKPOINT_GENERATOR].__module__ == "torch.utils.checkpoint"


def test_a_switch_is_followed_however_many_forwards_ran_before() -> None:
    model = model_of(SureLayer, SureLayer)
    switched(model, False)

    def switch(step: int) -> None:
        if step == 1:
            switched(model, True)

    trained = taken(model, 6, between=switch)
    assert "2 of 2 blocks checkpointed" in trained.table
    assert trained.report is not None
    assert (trained.report.steps, trained.report.proved) == (4, 2)


def test_the_table_is_that_of_the_training_whatever_follows() -> None:
    model = model_of(SureLayer, SureLayer)

    def training() -> None:
        train(model, 4)
        model.eval()

    (trained,) = looked_at(training, wrap=True)
    assert "2 of 2 blocks checkpointed" in trained.table


@pytest.mark.parametrize("wrap", [None, True])
@pytest.mark.parametrize("asked", [True, False])
def test_training_in_evaluation_mode_is_named(wrap: bool | None, asked: bool) -> None:
    model = model_of(SureLayer).eval()
    switched(model, asked)
    trained = taken(model, 2, wrap)
    said = ": transformers does not checkpoint in it, so call model.train()" if asked else ", without checkpointing"
    assert trained.said == [f"Model trained in evaluation mode{said}"]
    assert (trained.report, trained.table) == (None, "")


def test_a_model_set_to_training_after_an_evaluation_step_is_taken() -> None:
    model = model_of(SureLayer).eval()
    switched(model, True)
    trained = taken(model, 4, between=lambda _: cast("None", model.train()))
    assert trained.said == []
    assert trained.report is not None
    assert trained.report.steps == 3


class Inline(Own):
    """A model that checkpoints in evaluation mode too, as in diffusers."""

    def __init__(self) -> None:
        super().__init__(plainly)
        self.gradient_checkpointing = True

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            if torch.is_grad_enabled() and self.gradient_checkpointing:
                values = cast("Tensor", checkpoint(block, values, use_reentrant=False))
            else:
                values = block(values)
        return values


@pytest.mark.parametrize("wrap", [None, False])
def test_a_library_that_checkpoints_in_evaluation_mode_goes_on_doing_so(wrap: bool | None) -> None:
    trained = taken(Inline().eval(), 4, wrap)
    assert ("3 of 3 blocks checkpointed" in trained.table) is (wrap is None)
    assert trained.report is not None
    assert [block.counts for block in trained.report.blocks] == [(1, 1)] * 3
    assert trained.report.ok


def test_a_forward_without_a_backward_is_no_training() -> None:
    with running(TakeoverOptions()) as takeover:
        model_of(SureLayer).eval()(**values())
        Own(plainly).double()(**values())
    assert takeover.trained == []


def exchanging(model: nn.Module) -> None:
    """Let the first layer have other weights in the forward than in the backward."""
    weight = model.get_parameter("model.layers.0.mlp.up_proj.weight")
    own, patched = weight.data, weight.data + 1

    def load(value: Tensor) -> None:
        weight.data = value

    model.register_forward_pre_hook(lambda *_: load(patched))
    model.register_forward_hook(lambda *_: load(own))


def failing(model: nn.Module) -> None:
    """Make the product's own code fail in a call."""
    vars(model.get_submodule("model.layers.0"))["forward"]._state = None


def gradients(model: Any, step: int) -> list[Tensor | None]:
    torch.manual_seed(step)
    model.zero_grad()
    model(**tokens()).loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("spoil", [exchanging, failing], ids=["an exchanged weight", "an error of ours"])
def test_a_model_goes_back_to_the_script_after_a_doubtful_call(spoil: Callable[..., None]) -> None:
    model, said = llama(2, use_cache=False).train(), list[str]()
    switched(model, True)
    if spoil is exchanging:
        spoil(model)
    expected = [gradients(model, step) for step in range(3)]
    with running(TakeoverOptions(), said.append) as takeover:
        if spoil is failing:
            model(**tokens())
            spoil(model)
        seen = [gradients(model, step) for step in range(3)]
        (trained,) = takeover.trained
        assert surgeries_in(model) == []
        assert is_asked(model)
    assert all(map(_same, seen, expected))
    assert len(said) == 1
    assert said[0].endswith("since then it trains as the script has it")
    assert trained.table == ""
    assert trained.said[0].endswith("since then it trains as the script has it")


@pytest.mark.parametrize(
    ("home", "name"),
    [(HostTransport, "put"), (HostTransport, "finish"), (HostTransport, "start"), (DiskTransport, "put")],
)
def test_a_model_goes_back_to_the_script_where_offload_fails(
    home: type, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, said = llama(4, use_cache=False).train(), list[str]()
    switched(model, True)
    expected = [gradients(model, step) for step in range(3)]
    working, calls = getattr(home, name), itertools.count()

    def broken(self: object, *given: Any) -> Any:
        if next(calls) and (name != "start" or Offloader._prefetch.__code__ is sys._getframe(1).f_code):
            raise RuntimeError("no such device")
        return working(self, *given)

    monkeypatch.setattr(home, name, broken)
    place = "cpu" if home is HostTransport else tmp_path
    with running(TakeoverOptions(wrap_options={"offload": place}), said.append):
        seen = [gradients(model, step) for step in range(3)]
        assert surgeries_in(model) == []
    assert all(map(_same, seen, expected))
    assert said == [f"{type(model).__name__}: RuntimeError: no such device; since then it trains as the script has it"]


def test_what_offload_cannot_bring_back_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise RuntimeError("no such device")

    model = llama(4, use_cache=False).train()
    switched(model, True)
    monkeypatch.setattr(HostTransport, "get", lost)
    options = TakeoverOptions(wrap_options={"offload": "cpu"})
    with running(options), pytest.raises(RuntimeError, match="no such device"):
        model(**tokens()).loss.backward()


def _same(ours: list[Tensor | None], theirs: list[Tensor | None]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def test_a_doubtful_call_stops_the_run_if_asked_to() -> None:
    model = llama(2, use_cache=False).train()
    exchanging(model)
    options = TakeoverOptions(True, guard_options=GuardOptions(on_fault="raise"))
    with running(options), pytest.raises(SurgeryError, match="gave a different result than its forward"):
        model(**tokens()).loss.backward()


@pytest.mark.parametrize("on", [(0, 2), (0, 3), (1, 2)], ids=str)
def test_which_layers_a_script_has_switched_on_is_kept(on: tuple[int, ...]) -> None:
    model = model_of(*[SureLayer] * 4)
    switched(model, True)
    for index, layer in enumerate(model.layers):
        vars(layer)["gradient_checkpointing"] = index in on
    trained = taken(model)
    assert trained.report is not None
    counts = {block.name: block.counts for block in trained.report.blocks}
    assert [index for index in range(4) if counts.get(f"layers.{index}") == (1, 1)] == [*on]
    assert ("2 of 4 layers of layers, and not in every n-th" in " ".join(trained.said)) == (on == (1, 2))
    assert bool(trained.table) == (on != (1, 2))


def test_nothing_lies_on_a_model_that_nobody_has_switched_on(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def evaluate() -> None:
        for mode in (False, True):
            model.train(mode)(torch.ones(2, WIDTH)).sum().backward()
        torch.jit.script(model)  # takes no hooks of ours
        torch.save(model, tmp_path / "model.pt")

    (trained,) = looked_at(evaluate)
    assert trained.said == ["Sequential trained without checkpointing"]  # --wrap finds no blocks in it
    assert b"ckpt_surgery" not in (tmp_path / "model.pt").read_bytes()


def test_what_a_model_makes_of_its_methods_ends_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    class Odd(Own):
        def parameters(self, groups: Any) -> Any:  # type: ignore[override]
            return [groups]

        def children(self) -> Any:
            raise OSError("gone")

    looked_at(lambda: Odd(plainly)(torch.ones(2, WIDTH)).sum().backward())
    assert "no more models are looked for, as that failed: OSError: gone" in capsys.readouterr().out


def test_a_model_behind_one_that_does_not_hold_it_is_one() -> None:
    class Pipeline(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.models = [model]

        def forward(self, values: Tensor) -> Tensor:
            return cast("Tensor", self.models[0](values))

    pipeline = Pipeline(Own(reentrantly))
    (trained,) = looked_at(lambda: [pipeline(torch.ones(2, WIDTH)).sum().backward() for _ in range(2)])
    assert (trained.name, trained.checkpoints_itself) == ("Own", True)


def test_functions_that_are_checkpointed_are_not_said_to_be_none() -> None:
    class Functional(Own):
        def forward(self, values: Tensor) -> Tensor:
            return cast(
                "Tensor", torch.utils.checkpoint.checkpoint(torch.sin, self.first(values), use_reentrant=False)
            )

    (said,) = taken(Functional(plainly)).said
    how = "so that nothing is checkpointed but perhaps functions, which are not watched"
    assert said == f"Functional: no module of it was recomputed, {how}"


def test_stacks_that_are_off_leave_the_others_to_be_wrapped() -> None:
    model = model_of(SureLayer, SureLayer)
    switched(model, True)
    vars(model)["tower"] = None
    model.tower = nn.ModuleList([SureLayer()])
    trained = taken(model)
    assert "2 of 2" in trained.table
    assert trained.problems == []


class Around(nn.Module):
    """A model around another, as adapters and tasks are."""

    def __init__(self, inner: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, head

    def forward(self, values: Tensor) -> Any:
        return self.head(next(tensors(self.inner(values))))


@pytest.mark.parametrize("on", [True, False])
def test_a_model_that_trained_before_it_got_a_wrapper_has_one_report(on: bool) -> None:
    model = model_of(SureLayer, SureLayer)
    switched(model, on)

    def both() -> None:
        train(model, 1)
        train(Around(model, nn.Linear(WIDTH, WIDTH)).double(), 4)

    (trained,) = looked_at(both)
    assert (trained.report is not None) is on
    if trained.report is not None:
        assert (trained.report.steps, trained.report.proved, trained.report.ok) == (5, 2, True)


def test_a_compiled_head_leaves_the_blocks_to_be_wrapped_and_watched() -> None:
    model = model_of(SureLayer, SureLayer)
    switched(model, True)
    head = torch.compile(nn.Sequential(nn.Linear(WIDTH, WIDTH)), backend="eager")
    trained = taken(Around(model, cast("nn.Module", head)))
    assert trained.said == []
    assert "2 of 2 blocks checkpointed" in trained.table
    assert trained.report is not None
    assert (trained.report.proved, trained.report.ok) == (2, True)


def test_hooks_of_the_script_on_parameters_run_as_often_as_without() -> None:
    counts = []
    for watch in (False, True):
        model = Own(partial(checkpoint, use_reentrant=False)).double()
        seen: list[Tensor] = []
        for parameter in model.parameters():
            parameter.register_hook(seen.append)  # type: ignore[no-untyped-call]
        if watch:
            report = taken(model).report
            assert report is not None
            assert {block.proof.status for block in report.blocks} == {ProofStatus.HOOKED}
        else:
            train(model)
        counts.append(len(seen))
    assert counts[0] == counts[1]


def trains_as_unwrapped(trained: Callable[[nn.Module], list[Tensor | None]]) -> list[str]:
    """Hold the gradients of a wrapped model against those of a plain copy; return what was said."""
    torch.manual_seed(0)
    model, said = Own(plainly), list[str]()
    expected = trained(copy.deepcopy(model))
    with running(TakeoverOptions(True), said.append):
        seen = trained(model)
    assert _same(seen, expected)
    return said


def replacing(_: nn.Module, given: tuple[Tensor], *__: Any) -> Tensor:
    return given[0] * 3


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("before", [True, False], ids=["before it", "behind it"])
def test_hooks_inside_a_block_give_the_same_results_as_unwrapped(before: bool, lasts: bool) -> None:
    def trained(model: nn.Module) -> list[Tensor | None]:
        linear = model.get_submodule("blocks.1.linear")
        for _ in range(2):
            model.zero_grad()
            handle = (linear.register_forward_pre_hook if before else linear.register_forward_hook)(replacing)
            loss = model(torch.ones(2, WIDTH)).sum()
            if not lasts:
                handle.remove()
            loss.backward()
            handle.remove()
        assert [*linear._forward_hooks, *linear._forward_pre_hooks] == []
        return [parameter.grad for parameter in model.parameters()]

    said = trains_as_unwrapped(trained)
    assert said == []


@pytest.mark.parametrize("lasts", [True, False])
def test_a_hook_that_fails_as_it_runs_again_leaves_results_as_they_are(lasts: bool) -> None:
    class Once:
        """A hook that fails if it runs again before the next step."""

        runs = 0

        def __call__(self, *_: Any) -> None:
            self.runs += 1
            assert self.runs == 1

    def trained(model: nn.Module) -> list[Tensor | None]:
        for _ in range(2):
            model.zero_grad()
            handle = model.get_submodule("blocks.1.linear").register_forward_hook(Once())
            loss = model(torch.ones(2, WIDTH)).sum()
            if not lasts:
                handle.remove()
            loss.backward()
            handle.remove()
        return [parameter.grad for parameter in model.parameters()]

    said = trains_as_unwrapped(trained)
    assert len(said) == lasts
    assert all("a hook of the script inside of PlainLayer blocks.1 failed as it ran again" in text for text in said)


DROPPING = """
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.extra = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values, bias=None):
        values = torch.tanh(self.linear(values))
        return values if bias is None else values + self.extra(bias)

class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.gradient_checkpointing = True
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, values):
        bias = values
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                values = checkpoint(block, values, use_reentrant=False)
            else:
                values = block(values, bias)
        return values
"""


@pytest.mark.parametrize("wrap", [False, None])
def test_an_argument_that_the_checkpointed_call_leaves_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrap: bool | None
) -> None:
    (tmp_path / "dropping.py").write_text(DROPPING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dropping", raising=False)
    report = taken(importlib.import_module("dropping").Dropping(), 2, wrap).report
    assert report is not None
    assert report.to_dict()["branches"] == report.branches
    said = " ".join(report.notes())
    assert ("without gradient: 4 parameters: blocks.0.extra.weight" in said) is (wrap is False)
    assert ("`bias`: left out under checkpointing" in said) is (wrap is False)
    assert all(note.startswith(f"check finds CKPT002 at {tmp_path / 'dropping.py'}:24: ") for note in report.branches)


def test_code_without_a_fault_is_not_said_to_have_one() -> None:
    model = Inline()
    for block in model.blocks:
        cast("PlainLayer", block).linear.unused = nn.Parameter(torch.ones(2))
    report = taken(model, wrap=False).report
    assert report is not None
    assert "blocks.0.linear.unused" in report.without_gradient
    assert report.branches == ()
