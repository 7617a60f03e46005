"""The benchmark of a step: what is counted is exact, every target can be missed, and times never decide a test."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import step_cost, step_cost_runs
from benchmarks.step_cost_report import as_json, figures, overhead
from benchmarks.step_cost_runs import (
    ALL_CHECKED,
    FAMILIES,
    IN_TURN,
    NONE,
    OF_CHECKS,
    OURS,
    THEIRS,
    WAYS,
    Cost,
    Family,
    Measured,
    Way,
    measure,
)
from ckpt_surgery.runtime.self_check.schedule import FIRST_STEPS

pytestmark = pytest.mark.torch

TORCHS, REENTRANT = Way("torch"), Way("transformers", "reentrant")


@pytest.fixture(scope="module")
def llama() -> Measured:
    return measure(Family("Llama", "LlamaForCausalLM", {"num_hidden_layers": 4}), rounds=1)


@pytest.mark.both
def test_on_llama_all_ways_keep_the_same_bytes_and_do_the_same_work(llama: Measured) -> None:
    costs = llama.costs
    assert {way: cost.faults for way, cost in costs.items()} == dict.fromkeys(WAYS, ())
    assert costs[OURS].kept_bytes == costs[THEIRS].kept_bytes == costs[TORCHS].kept_bytes
    assert costs[OURS].backward_flops == costs[THEIRS].backward_flops == costs[TORCHS].backward_flops
    assert costs[OURS].kept_bytes == costs[REENTRANT].kept_bytes


def test_checkpointing_keeps_less_and_works_more_than_none(llama: Measured) -> None:
    none = llama.costs[NONE]
    for way in WAYS:
        if way != NONE:
            assert llama.costs[way].kept_bytes < none.kept_bytes / 4
            assert none.backward_flops < llama.costs[way].backward_flops <= none.backward_flops + none.forward_flops
    assert (llama.calls, llama.nested) == (4, False)
    assert all(len(cost.seconds) == 1 for cost in llama.costs.values())


def test_swin_wrapped_once_works_as_much_as_checkpoint_wrapper_and_less_than_nested_layers() -> None:
    swin = measure(Family("Swin", "SwinModel"), rounds=1)
    costs = swin.costs
    assert costs[OURS].faults == ()
    assert costs[OURS].backward_flops == costs[TORCHS].backward_flops
    assert costs[OURS].kept_bytes == costs[TORCHS].kept_bytes
    if swin.nested:  # in transformers 5
        assert costs[THEIRS].faults
        assert costs[OURS].backward_flops < costs[THEIRS].backward_flops


def test_a_way_whose_step_breaks_is_told_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = step_cost_runs.ready

    def broken(model: Any, way: Way) -> Any:
        own = real(model, way)
        if way == TORCHS:
            own.register_forward_pre_hook(lambda *_: 1 / 0)
        return own

    monkeypatch.setattr(step_cost_runs, "ready", broken)
    costs = measure(Family("GPTBigCode", "GPTBigCodeForCausalLM"), rounds=1).costs
    assert not costs[TORCHS].ended
    assert "ZeroDivisionError" in costs[TORCHS].faults[0]
    assert (costs[TORCHS].seconds, len(costs[OURS].seconds)) == ((), 1)


def test_layers_that_do_nothing_are_recomputed_all_the_same() -> None:
    price = step_cost_runs.price_of_calls(layers=2, rounds=3)
    assert price.calls == 2
    assert len(overhead(price)) == 3


@pytest.fixture
def timed_models(monkeypatch: pytest.MonkeyPatch) -> dict[Way, Any]:
    """The models that are timed from now on."""
    models: dict[Way, Any] = {}
    real = step_cost_runs.timed

    def timed(given: dict[Way, Any], *arguments: Any) -> Any:
        models.update(given)
        return real(given, *arguments)

    monkeypatch.setattr(step_cost_runs, "timed", timed)
    return models


def checked_calls(model: Any) -> int:
    return sum(vars(layer)["forward"].schedule.checked for layer in model.model.layers)


def test_after_the_first_steps_no_block_checks_itself_or_one_a_step_or_every_one(
    timed_models: dict[Way, Any],
) -> None:
    rounds, layers = 2, 4
    price = step_cost_runs.price_of_checks(rounds=rounds, tokens=8, layers=layers)
    assert {way: len(cost.seconds) for way, cost in price.costs.items()} == dict.fromkeys(OF_CHECKS, rounds)
    first = FIRST_STEPS * layers
    counts = {way: checked_calls(model) for way, model in timed_models.items()}
    assert counts == {OURS: 0, IN_TURN: first + rounds, ALL_CHECKED: first + rounds * layers}


def test_a_call_is_measured_without_checks(timed_models: dict[Way, Any]) -> None:
    step_cost_runs.price_of_calls(layers=2, rounds=1)
    assert checked_calls(timed_models[OURS]) == 0


def cost(kept: int = 100, work: int = 300, faults: tuple[str, ...] = (), seconds: float = 1e-3) -> Cost:
    return Cost(kept, 100, work, faults, True, (seconds,))


def measured(nested: bool = False, **changed: Cost) -> Measured:
    """A family in which all ways cost the same, but for these, which are not reentrant."""
    costs = {way: cost() for way in WAYS} | {Way(whose): replacement for whose, replacement in changed.items()}  # type: ignore[arg-type]
    return Measured("Toy", 10, nested, costs)


def checks(every: float = 1e-3) -> Measured:
    """Twenty blocks: a step takes a millisecond, and this long where every block is checked."""
    seconds = {OURS: 1e-3, IN_TURN: 1e-3, ALL_CHECKED: every}
    return Measured("Checked", 20, False, {way: cost(seconds=each) for way, each in seconds.items()})


def missed(family: Measured, calls: Measured | None = None, checked: Measured | None = None) -> list[str]:
    found = figures([family], calls or measured(), checked or checks())
    return [figure.name for figure in found if figure.verdict == "missed"]


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
    family = measured()
    cheaper = replace(family, costs={**family.costs, REENTRANT: cost(kept=99, work=299)})
    assert len(missed(cheaper)) == 2


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


@pytest.mark.parametrize(("seconds", "met"), [(1.25e-3, True), (1.26e-3, False)])
def test_a_call_may_take_a_quarter_longer(seconds: float, met: bool) -> None:
    calls = measured(wrap_blocks=cost(seconds=seconds))
    assert missed(measured(), calls) == ([] if met else ["Toy: wrap_blocks over transformers"])


EVERY, ONE = "Checked: a step, every block checked", "Checked: what one checked block adds"


@pytest.mark.parametrize(("every", "names"), [(1.05e-3, []), (1.06e-3, [EVERY]), (1.11e-3, [EVERY, ONE])])
def test_the_check_of_every_block_may_take_a_twentieth_and_that_of_one_half_a_percent(
    every: float, names: list[str]
) -> None:
    assert missed(measured(), checked=checks(every)) == names


@pytest.mark.parametrize("theirs", [cost(faults=("nothing is recomputed",)), cost(work=200)])
def test_a_call_that_does_other_work_is_not_compared(theirs: Cost) -> None:
    assert overhead(measured(transformers=theirs)) == ()


def test_the_json_has_every_way_and_what_was_missed() -> None:
    family, calls = measured(wrap_blocks=cost(kept=200)), measured()
    content = json.loads(as_json([family, calls, checks()], figures([family], calls, checks())))
    missed_names = [name for name, figure in content["figures"].items() if figure["verdict"] == "missed"]
    assert missed_names == ["Toy: kept over the best of the others"]
    assert list(content["families"][0]["ways"]) == [str(way) for way in WAYS]
    assert content["families"][0]["ways"]["wrap_blocks"]["kept_bytes"] == 200


class TestTheScript:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.set_num_threads", lambda _: None)
        monkeypatch.setattr(step_cost_runs, "price_of_calls", lambda *_: measured())
        monkeypatch.setattr(step_cost_runs, "price_of_checks", lambda *_, **__: checks())

    @pytest.mark.parametrize(("kept", "code"), [(100, 0), (101, 1)])
    def test_prints_tables_writes_json_and_ends_with_1_where_a_target_is_missed(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int, code: int
    ) -> None:
        monkeypatch.setattr(step_cost_runs, "measure", lambda *_: measured(wrap_blocks=cost(kept=kept)))
        out = tmp_path / "new" / "cost.json"
        assert step_cost.main(["--out", str(out), "--rounds", "1", "Llama"]) == code
        printed = capsys.readouterr().out
        assert "checkpoint_wrapper" in printed
        assert ("missed" in printed) == bool(code)
        assert len(json.loads(out.read_text(encoding="utf-8"))["families"]) == 3

    def test_refuses_a_family_that_it_does_not_know(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert step_cost.main(["Lama"]) == 2
        assert 'there is no family Lama: those measured are "Llama", ' in capsys.readouterr().err


def test_llama_has_four_layers_or_more_and_nested_families_are_there() -> None:
    families = {family.name: family for family in FAMILIES}
    assert families["Llama"].options["num_hidden_layers"] >= 4
    assert {"Swin", "Zamba", "Zamba2"} <= families.keys()
