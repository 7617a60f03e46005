"""Policies on released models: rows of the page measured again, and checks that fail on broken code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import survey
from benchmarks.policies import FAMILIES, PAGE, RATES, Check, Outcome, cases, conclude, failed, figures_of

KEPT = {"outcome": "kept", "failed": [], "results": 2, "bytes": 2048, "added": 2048, "unheld": 0}
NOTHING = {"outcome": "nothing", "failed": [], "bytes": 0, "added": 0}
ROWS: list[dict[str, Any]] = [
    {"case": "Llama, matmul", "settings": {"with dropout": KEPT, "without dropout": KEPT}},
    {"case": "Llama, conv", "settings": {"with dropout": NOTHING, "without dropout": NOTHING}},
]


def failing(check: Check) -> dict[str, Any]:
    return {"case": "Llama, norm", "settings": {"with dropout": {**KEPT, "failed": [check]}}}


# The page


def test_the_page_has_every_case_of_both_releases_and_no_failure() -> None:
    releases = PAGE.read()
    assert [release["versions"]["transformers"] for release in releases] == ["5.23.0", "4.57.6"]
    for release in releases:
        assert sorted(release["settings"]) == sorted(cases())
        assert all(set(rates) == set(RATES) for rates in release["settings"].values())
        assert not failed(release)
        assert not release["problems"]


def test_what_failed_or_did_not_run_is_a_failure_and_releases_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "COVERAGE", tmp_path)
    PAGE.write([{**figures_of(ROWS), "versions": {"torch": "2", "transformers": "4.1"}}])
    assert not conclude(ROWS, 9, True)
    assert conclude([*ROWS, failing(Check.BYTES)], 9, True)
    assert conclude([*ROWS, {"case": "Llama, norm", "problem": "RuntimeError: no"}], 9, True)
    assert "| Llama, norm | RuntimeError: no |" in PAGE.text()
    assert len(PAGE.read()) == 2
    assert PAGE.read()[1]["versions"]["transformers"] == "4.1"


# Measured


@pytest.fixture(scope="module")
def benches() -> Callable[[str], Any]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.policies_runs import Bench

    made: dict[str, Any] = {}

    def bench(name: str) -> Any:
        if name not in made:
            made[name] = Bench.of(next(family for family in FAMILIES if family.name == name))
        return made[name]

    return bench


def on_the_page(name: str, save: str, rate: str) -> Any:
    from importlib.metadata import version

    releases = {each["versions"]["transformers"]: each for each in PAGE.read()}
    if (installed := version("transformers")) not in releases:
        pytest.skip("the page has no figures of this release")
    return releases[installed]["settings"][f"{name}, {save}"][rate]


@pytest.mark.both
@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "save", "outcome"),
    [("Llama", "matmul:2", Outcome.KEPT), ("BERT", "norm", Outcome.KEPT), ("Llama", "conv", Outcome.NOTHING)],
)
def test_rows_of_the_page_are_measured_again(name: str, save: str, outcome: Outcome, benches: Any) -> None:
    setting = benches(name).measured(save, RATES["with dropout"])
    assert json.loads(json.dumps(asdict(setting))) == on_the_page(name, save, "with dropout")
    assert setting.outcome is outcome


def run_again(patch: pytest.MonkeyPatch) -> None:
    """Run what is kept again in the recompute, and use the kept values."""
    from ckpt_surgery.runtime.selective import kept_results

    giving: Any = kept_results._GivingMode
    dispatch = giving.__torch_dispatch__

    def twice(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._kept.policy.role(func) is not None:
            func(*args, **(kwargs or {}))
        return dispatch(self, func, types, args, kwargs)

    patch.setattr(giving, "__torch_dispatch__", twice)


def other_values(patch: pytest.MonkeyPatch) -> None:
    """Change the values of what is kept."""
    from ckpt_surgery.runtime.selective.operator_result import OperatorResult, alias_of
    from ckpt_surgery.runtime.selective.replay import Replay

    operator_again, again = OperatorResult.again, Replay.again
    patch.setattr(OperatorResult, "again", lambda self, args: alias_of(operator_again(self, args)) * 1.5)
    patch.setattr(Replay, "again", lambda self, made, *call: again(self, [tensor * 1.5 for tensor in made], *call))


def outputs_counted(patch: pytest.MonkeyPatch) -> None:
    """Count what blocks return as kept."""
    from ckpt_surgery.runtime.selective.kept_results import KeptResults

    end = KeptResults.end
    patch.setattr(KeptResults, "end", lambda self, outputs: end(self, ()))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("break_it", "name", "save", "checks"),
    [
        (run_again, "Llama", "matmul:2", {Check.ONCE}),
        (other_values, "Llama", "matmul:2", {Check.GRADIENTS, Check.OFFLOAD_GRADIENTS}),
        (outputs_counted, "BERT", "norm", {Check.BYTES}),
    ],
)
def test_a_check_fails_where_what_it_checks_is_broken(
    break_it: Callable[[pytest.MonkeyPatch], None],
    name: str,
    save: str,
    checks: set[Check],
    benches: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = benches(name)
    break_it(monkeypatch)
    assert checks <= set(bench.measured(save, RATES["without dropout"]).failed)
