"""The fuzzer finds a product that breaks its promise, in each way to break it, and ours does not break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from benchmarks.fuzz import judge as judging
from benchmarks.fuzz.__main__ import main
from benchmarks.fuzz.case import OPTIONS, Case
from benchmarks.fuzz.features import FEATURES
from benchmarks.fuzz.judge import FAILURES, Outcome, Result, judge, train, untreated
from benchmarks.fuzz.loops import LOOPS
from benchmarks.fuzz.model import Feature
from benchmarks.survey import ROOT
from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from tests.warm_python import run_python

pytestmark = [pytest.mark.torch, pytest.mark.slow]
Forward = Callable[..., Any]


def case_of(*features: str, variant: bool = True, loop: str = "steps", **options: Any) -> Case:
    """Return the first case whose first feature has this variant."""
    cases = (Case(seed, loop, features, **options) for seed in range(99))
    return next(case for case in cases if not features or made(case).variant is variant)


def made(case: Case) -> Feature:
    return case.make_model().layers[0].features[0]  # type: ignore[index, return-value]


# The promise


CHUNK = 50
FIRST_SEEDS = range(7_000_000, 7_000_150, CHUNK)


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_a_surgery_trains_as_without_or_refuses_by_name(first: int) -> None:
    results = {seed: judge(Case.drawn(seed)) for seed in range(first, first + CHUNK)}
    assert {seed: result for seed, result in results.items() if result.outcome in FAILURES} == {}
    assert sum(result.outcome is Outcome.EQUAL for result in results.values()) > CHUNK // 2


def test_cases_have_every_feature_loop_and_option_and_a_seed_says_all() -> None:
    cases = [Case.drawn(seed) for seed in range(300)]
    assert {name for case in cases for name in case.features} == set(FEATURES)
    assert {case.loop for case in cases} == set(LOOPS)
    assert all(any(case.options == options for case in cases) for options in ({}, *OPTIONS))
    assert [Case.drawn(seed) for seed in range(300)] == cases


@pytest.mark.parametrize("case", [*(case_of(name) for name in FEATURES), *(case_of(loop=loop) for loop in LOOPS)])
def test_every_feature_and_every_loop_trains_by_itself(case: Case) -> None:
    run = train(case, untreated)
    assert run.error is None or case.features == ("InPlace",)
    assert run.notes


# Wrong treatments


def treating(change: Callable[[Forward], Forward], blocks: slice = slice(None)) -> judging.Treatment:
    """Return the treatment that replaces the forward of some blocks."""

    def treat(model: nn.Module, case: Case) -> Callable[[], None]:
        layers: Sequence[Any] = list(model.layers)  # type: ignore[arg-type]
        for layer in layers[blocks]:
            layer.forward = change(layer.forward)
        return lambda: None

    return treat


def without_gradient(forward: Forward) -> Forward:
    """Lose the gradient of the block's result."""
    return lambda hidden, *args, **kwargs: forward(hidden, *args, **kwargs).detach() + hidden - hidden.detach()


def drawing_again(forward: Forward) -> Forward:
    """Draw other numbers in the recompute."""
    return partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)


def running_twice(forward: Forward) -> Forward:
    """Recompute to the end without restoring what the block writes, or comparing anything."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with set_checkpoint_early_stop(False):
            return checkpoint(forward, *args, use_reentrant=False, determinism_check="none", **kwargs)

    return run


def drawing_more(forward: Forward) -> Forward:
    """Draw a number that nobody needs."""
    return lambda *args, **kwargs: (forward(*args, **kwargs), torch.rand(()))[0]


def swallowing(forward: Forward) -> Forward:
    """Go on after any error."""

    def run(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return forward(hidden, *args, **kwargs)
        except BaseException:
            return hidden

    return run


def raising(error: Exception, forward: Forward) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise error

    return run


def wrong_and_refusing(wrong: int, refusing: int, forward: Forward) -> Forward:
    """Give wrong results from a call on, and refuse from another."""
    calls: list[int] = []

    def run(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(0)
        if len(calls) > refusing:
            raise SurgeryError("FuzzBlock layers.0: something is wrong")
        return forward(hidden, *args, **kwargs) * (1.5 if len(calls) > wrong else 1)

    return run


def scaling(model: nn.Module, case: Case, *, by: float) -> Callable[[], None]:
    """Scale the gradients of one parameter."""
    model.layers[0].up.weight.register_hook(lambda gradient: gradient * by)  # type: ignore[index, union-attr]
    return lambda: None


def zero_gradients(model: nn.Module, case: Case) -> Callable[[], None]:
    """Give zeros to all parameters that would have no gradient."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return lambda: None


NAMED = SurgeryError("FuzzBlock layers.1 cannot be checkpointed: 3 reasons")
TREATED: dict[str, tuple[judging.Treatment, Case, Outcome]] = {
    "nothing": (untreated, case_of("Dropout"), Outcome.EQUAL),
    "a lost gradient": (treating(without_gradient), case_of(), Outcome.SILENT),
    "a gradient off by little": (partial(scaling, by=1 + 1e-6), case_of("Norm"), Outcome.SILENT),
    "added up otherwise in a cache": (partial(scaling, by=1 + 1e-6), case_of("EmptyCache"), Outcome.EQUAL),
    "off by more with a cache": (partial(scaling, by=1 + 1e-3), case_of("EmptyCache"), Outcome.SILENT),
    "zeros for no gradient": (zero_gradients, case_of("FrozenBlock"), Outcome.SILENT),
    "other random numbers": (treating(drawing_again), case_of("Dropout"), Outcome.SILENT),
    "a number counted twice and read": (treating(running_twice), case_of("Calls"), Outcome.SILENT),
    "a number counted twice": (treating(running_twice), case_of("Calls", variant=False), Outcome.STATE),
    "a buffer written twice": (treating(running_twice), case_of("Norm", variant=False), Outcome.STATE),
    "a generator moved on": (treating(drawing_more), case_of(), Outcome.STATE),
    "an interrupt that is lost": (treating(swallowing), case_of(loop="interrupted"), Outcome.SILENT),
    "a crash": (treating(partial(raising, RuntimeError("layer 3 is missing"))), case_of(), Outcome.FAILED),
    "a refusal": (treating(partial(raising, NAMED)), case_of(), Outcome.REFUSED),
    "a refusal without a name": (treating(partial(raising, SurgeryError("no"))), case_of(), Outcome.FAILED),
    "refused when wrong": (treating(partial(wrong_and_refusing, 2, 3), slice(1)), case_of(), Outcome.SILENT),
}


@pytest.mark.parametrize("name", TREATED)
def test_the_judge_tells_what_a_treatment_does(name: str) -> None:
    treatment, case, outcome = TREATED[name]
    assert judge(case, treatment).outcome is outcome


def test_reasons_are_alike_whatever_the_block_and_the_numbers() -> None:
    result = judge(case_of(), treating(partial(raising, NAMED)))
    assert result.details == (str(NAMED),)
    assert result.reason == "BLOCK cannot be checkpointed: N reasons"


class Infinite(Feature):
    """A feature that divides by zero."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden / 0


class Raising(Feature):
    """A feature that cannot run."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        raise KeyError("nothing")


@pytest.mark.parametrize("kind", [Infinite, Raising])
def test_a_case_without_a_reference_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setitem(FEATURES, kind.__name__, kind)
    assert judge(Case(0, features=(kind.__name__,)), treating(without_gradient)).outcome is Outcome.INVALID


@pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself")
@pytest.mark.parametrize(("store", "transport"), [("cpu", HostTransport), ("disk", DiskTransport)])
def test_a_store_that_loses_values_is_found(store: str, transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    get = transport.get
    monkeypatch.setattr(transport, "get", lambda self, copy: get(self, copy).zero_())
    assert judge(case_of(options={"offload": store})).outcome is not Outcome.EQUAL


# The command


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.EQUAL, 0), (Outcome.FAILED, 1)])
def test_one_case_shows_what_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outcome: Outcome, code: int
) -> None:
    monkeypatch.setattr(judging, "judge", lambda case: Result(outcome, ("first", "second")))
    assert main(["--case", "12"]) == code
    assert capsys.readouterr().out.splitlines() == [str(Case.drawn(12)), outcome, "first", "second"]


BREAK = """
from functools import partial
import benchmarks.fuzz.judge as judging
from ckpt_surgery.runtime.checkpoint.recompute import Computation
run = Computation.__call__
def wrong(computation, *given):
    result = run(computation, *given)
    return None if result is None else result * 1.5
Computation.__call__ = wrong
judging.wrap_blocks = partial(judging.wrap_blocks, self_check="never")
"""
"""Makes a checkpointed block return 1.5 times its result, and nothing look at it."""


@pytest.mark.parametrize(
    ("setup", "code", "printed"),
    [
        ("", 0, "equal"),
        (BREAK, 1, "silent"),
        ("import torch\ntorch.Tensor.backward = None", 1, "3 invalid"),
        ("import os, benchmarks.fuzz.judge as judging\njudging.judge = lambda case: os._exit(3)", 1, "exit code 3"),
    ],
    ids=["as it is", "a broken product", "no reference", "a process that dies"],
)
def test_a_run_fails_where_a_case_does_or_none_could_be_judged(setup: str, code: int, printed: str) -> None:
    program = f"{setup}\nfrom benchmarks.fuzz.__main__ import main\nraise SystemExit(main(['--cases', '3']))"
    done = run_python("-c", program, cwd=ROOT)  # not here: nothing can be forked once a backward has begun threads
    assert (done.returncode, printed in done.stdout) == (code, True), done.stdout + done.stderr
