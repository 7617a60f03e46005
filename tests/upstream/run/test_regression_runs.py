"""Our own test run by pytest on toy models: each of its three checks is red on what is broken, and green after."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.upstream.evidence.results import CheckStatus
from ckpt_surgery.upstream.run.family_tests import family_tests
from ckpt_surgery.upstream.run.interpreter import Interpreter
from ckpt_surgery.upstream.run.pytest_run import PytestRun, run_pytest
from ckpt_surgery.upstream.run.regression import regression
from ckpt_surgery.upstream.run.regression_method import TEST, method, with_method
from tests.upstream.regression_toys import (
    BATCH_NORM,
    COMMON,
    COMMON_TEXT,
    ELM,
    EXCUSED,
    FORGETFUL,
    KEYWORD,
    MODEL,
    NESTED,
    PLAIN,
    TEST_TEXT,
    Damage,
    damaged,
    make,
)

pytestmark = pytest.mark.torch

PYTHON = Interpreter(Path(sys.executable))
BOTH: tuple[Mode, ...] = ("non_reentrant", "reentrant")
BROKEN: dict[str, Damage] = {
    "elm": (),
    "plain": PLAIN,
    "keyword": KEYWORD,
    "nested": NESTED,
    "forgetful": FORGETFUL,
    "norm": BATCH_NORM,
    "forgetful_norm": [*FORGETFUL, *BATCH_NORM],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PytestRun]:
    """The test in one family for each way of being broken, and in one that is not; few at once, for the output."""
    files = {}
    text = with_method(TEST_TEXT, ["ElmModelTest"], method(["ElmLayer"], BOTH, ""))
    for family, damage in BROKEN.items():
        files[MODEL.replace("elm", family)] = damaged(damage)
        files[ELM.replace("elm", family)] = text.replace(
            "models.elm.modeling_elm", f"models.{family}.modeling_{family}"
        )
        files |= {f"{top}/models/{family}/__init__.py": "" for top in ("src/transformers", "tests")}
    tree = make(tmp_path_factory.mktemp("checkout"), files=files).series
    results: dict[str, PytestRun] = {}
    for some in (["elm", "plain", "nested", "norm"], ["keyword", "forgetful", "forgetful_norm"]):
        run = run_pytest(PYTHON, tree, [f"tests/models/{family}" for family in some], names=TEST)
        results |= dict.fromkeys(some, run)
    return results


def outcomes(run: PytestRun, family: str) -> list[str]:
    """How the tests of one family ended."""
    return [result.outcome for name, result in run.results.items() if f"/{family}/" in name]


@pytest.mark.parametrize("family", ["elm", "norm"], ids=["all is well", "running statistics move twice"])
def test_it_passes_where_gradients_are_equal(runs: dict[str, PytestRun], family: str) -> None:
    assert outcomes(runs[family], family) == ["passed"]


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("plain", "blocks that are not recomputed"),
        ("keyword", "Trying to backward through the graph a second time"),
        ("nested", ": parameters with a gradient"),
        ("forgetful", "gradients that checkpointing changes"),
        ("forgetful_norm", "gradients that checkpointing changes"),
    ],
)
def test_it_fails_where_something_is_broken(runs: dict[str, PytestRun], family: str, reason: str) -> None:
    assert outcomes(runs[family], family) == ["failed"]
    assert reason in runs[family].ran.output


@pytest.mark.slow
def test_a_whole_regression_with_excuses_taken_out(tmp_path: Path) -> None:
    trees = make(tmp_path, PLAIN)
    outcome = regression("elm", trees.base, trees.series, PYTHON, blocks=["ElmLayer"], modes=BOTH)
    assert (outcome.kind, len(outcome.tests)) == ("exception removed", 1)
    assert outcome.before is not None
    assert outcome.after is not None
    assert "1 failed" in outcome.before.output
    assert "1 passed" in outcome.after.output
    assert family_tests("elm", trees.base, trees.series, PYTHON).status == CheckStatus.OK


@pytest.mark.slow
def test_a_whole_regression_with_a_test_of_our_own(tmp_path: Path) -> None:
    free, unexcused = COMMON_TEXT.replace('["elm"]', '["oak"]'), TEST_TEXT.replace(EXCUSED, "")
    trees = make(tmp_path, NESTED, files={COMMON: free, ELM: unexcused})
    before = trees.tests(trees.base)
    outcome = regression("elm", trees.base, trees.series, PYTHON, blocks=[], modes=BOTH)
    assert (outcome.kind, outcome.tests) == ("added", (f"{ELM}::ElmModelTest::{TEST}",))
    assert trees.tests(trees.base) == before
    assert (trees.base / COMMON).read_text() == (trees.series / COMMON).read_text() == free
