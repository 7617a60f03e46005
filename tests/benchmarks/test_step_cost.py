"""The benchmark of a step: counts are exact, every target can be missed, and times never decide a test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import step_cost
from benchmarks.step_cost import (
    FAMILIES,
    NONE,
    OURS,
    REENTRANT,
    THEIRS,
    WAYS,
    WRAPPER,
    Cost,
    Measured,
    figures,
    measure,
    overhead,
)

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def llama() -> Measured:
    return measure("Llama", rounds=1)


@pytest.mark.both
def test_on_llama_all_ways_keep_the_same_bytes_and_do_the_same_work(llama: Measured) -> None:
    costs = llama.costs
    assert {way: cost.faults for way, cost in costs.items()} == dict.fromkeys(WAYS, ())
    assert costs[OURS].kept_bytes == costs[THEIRS].kept_bytes == costs[WRAPPER].kept_bytes
    assert costs[OURS].backward_flops == costs[THEIRS].backward_flops == costs[WRAPPER].backward_flops
    assert costs[OURS].kept_bytes == costs[REENTRANT].kept_bytes


def test_checkpointing_keeps_less_and_works_more_than_none(llama: Measured) -> None:
    none = llama.costs[NONE]
    for way in WAYS:
        if way != NONE:
            assert llama.costs[way].kept_bytes < none.kept_bytes / 4
            assert none.backward_flops < llama.costs[way].backward_flops <= none.backward_flops + none.forward_flops
    assert (llama.calls, llama.nested) == (6, False)
    assert all(len(cost.seconds) == 1 for cost in llama.costs.values())


def test_swin_wrapped_once_costs_as_checkpoint_wrapper_nested_costs_more() -> None:
    swin = measure("Swin", rounds=1)
    costs = swin.costs
    assert costs[OURS].faults == ()
    assert costs[OURS].backward_flops == costs[WRAPPER].backward_flops
    assert costs[OURS].kept_bytes == costs[WRAPPER].kept_bytes
    if swin.nested:  # in transformers 5
        assert costs[THEIRS].faults
        assert costs[OURS].backward_flops < costs[THEIRS].backward_flops


def test_a_way_whose_step_breaks_is_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = step_cost.ready

    def broken(model: Any, way: str) -> Any:
        own = real(model, way)
        if way == WRAPPER:
            own.register_forward_pre_hook(lambda *_: 1 / 0)
        return own

    monkeypatch.setattr(step_cost, "ready", broken)
    costs = measure("GPTBigCode", rounds=1).costs
    assert not costs[WRAPPER].ended
    assert "ZeroDivisionError" in costs[WRAPPER].faults[0]
    assert (costs[WRAPPER].seconds, len(costs[OURS].seconds)) == ((), 1)


def cost(kept: int = 100, work: int = 300, faults: tuple[str, ...] = (), seconds: float = 1e-3) -> Cost:
    return Cost(kept, 100, work, faults, True, (seconds,))


def measured(nested: bool = False, **changed: Cost) -> Measured:
    """Measure a family in which all ways but these cost the same."""
    names = {"wrap_blocks": OURS, "transformers": THEIRS, "torch": WRAPPER, "none": NONE, "reentrant": REENTRANT}
    costs = dict.fromkeys(WAYS, cost()) | {names[whose]: replacement for whose, replacement in changed.items()}
    return Measured("Toy", 10, nested, costs)


def missed(family: Measured) -> list[str]:
    return [figure.name for figure in figures(family) if figure.verdict == "missed"]


def test_equal_bytes_and_work_meet_every_target() -> None:
    assert missed(measured()) == []


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (cost(kept=101), "kept over the best of the others"),
        (cost(work=301), "work over the best of the others"),
        (cost(faults=("a gradient is lost",)), "faults"),
    ],
)
def test_one_byte_one_flop_or_one_fault_misses_a_target(ours: Cost, name: str) -> None:
    assert missed(measured(wrap_blocks=ours)) == [f"Toy: {name}"]


def test_the_librarys_reentrant_mode_sets_a_mark() -> None:
    assert len(missed(measured(reentrant=cost(kept=99, work=299)))) == 2


def test_only_ways_that_are_right_set_a_mark() -> None:
    cheap = cost(kept=1, work=1)
    assert len(missed(measured(torch=cheap))) == 2
    assert missed(measured(torch=replace(cheap, faults=("wrong",)))) == []
    assert missed(measured(none=cheap)) == []


def test_nested_layers_that_run_three_times_have_to_be_beaten() -> None:
    twice = cost(work=400, faults=("three entries",))
    assert missed(measured(nested=True, transformers=twice)) == []
    name = "Toy: work over transformers' own, nested"
    assert name in missed(measured(nested=True, transformers=twice, wrap_blocks=cost(work=400)))


@pytest.mark.parametrize("theirs", [cost(faults=("nothing is recomputed",)), cost(work=200)])
def test_a_call_that_does_other_work_is_not_compared(theirs: Cost) -> None:
    assert overhead(measured(transformers=theirs)) == ()


@pytest.mark.parametrize(("kept", "code"), [(100, 0), (101, 1)])
def test_the_script_ends_with_1_where_a_target_is_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int, code: int
) -> None:
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr(step_cost, "measure", lambda *_: measured(wrap_blocks=cost(kept=kept)))
    out = tmp_path / "new" / "cost.json"
    assert step_cost.main(["--out", str(out), "--rounds", "1", "Llama"]) == code
    printed = capsys.readouterr().out
    assert "checkpoint_wrapper" in printed
    assert ("missed" in printed) == bool(code)
    (family,) = json.loads(out.read_text(encoding="utf-8"))["families"]
    assert list(family["costs"]) == list(WAYS)


def test_an_unknown_family_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert step_cost.main(["Lama"]) == 2
    assert "there is no family Lama: those measured are Llama, " in capsys.readouterr().err
    assert {"Swin", "Zamba", "Zamba2"} <= FAMILIES.keys()
