"""Our own test run by pytest on toy models: each of its three checks is red on broken ones, and green after."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ckpt_surgery.measure.results import Mode
from ckpt_surgery.upstream.run import interpreter
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.pytest_run import PytestRun, run_pytest
from ckpt_surgery.upstream.run.regression import regression
from ckpt_surgery.upstream.run.regression_method import TEST, method, with_method
from tests.upstream.regression_toys import (
    BATCH_NORM,
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

PYTHON = PythonInterpreter(Path(sys.executable))
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
def tried(tmp_path_factory: pytest.TempPathFactory) -> PytestRun:
    """Try the test in one family for each way of being broken, and in two sound ones."""
    files = {}
    text = with_method(TEST_TEXT, ["ElmModelTest"], method(["ElmLayer"], BOTH, ""))
    for family, damage in BROKEN.items():
        files[MODEL.replace("elm", family)] = damaged(damage)
        files[ELM.replace("elm", family)] = text.replace(
            "models.elm.modeling_elm", f"models.{family}.modeling_{family}"
        )
        files |= {f"{top}/models/{family}/__init__.py": "" for top in ("src/transformers", "tests")}
    tree = make(tmp_path_factory.mktemp("checkout"), files=files).series
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "LINES", 1000)  # of all failures at once
        return run_pytest(PYTHON, tree, [f"tests/models/{family}" for family in BROKEN], names=TEST)


def outcomes(run: PytestRun, family: str) -> list[str]:
    return [result.outcome for name, result in run.results.items() if f"/{family}/" in name]


@pytest.mark.parametrize("family", ["elm", "norm"], ids=["all is well", "running statistics move twice"])
def test_it_passes_where_gradients_are_equal(tried: PytestRun, family: str) -> None:
    assert outcomes(tried, family) == ["passed"]


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
def test_it_fails_where_something_is_broken(tried: PytestRun, family: str, reason: str) -> None:
    assert outcomes(tried, family) == ["failed"]
    failures = re.split(r"^_{3,} .+ _{3,}$", tried.ran.output, flags=re.MULTILINE)
    assert any(f"tests/models/{family}/" in failure and reason in failure for failure in failures)


@pytest.mark.slow
def test_a_whole_regression_with_a_test_of_our_own(tmp_path: Path) -> None:
    trees = make(tmp_path, NESTED, files={ELM: TEST_TEXT.replace(EXCUSED, "")})
    before = trees.tests(trees.base)
    outcome = regression("elm", trees.base, trees.series, PYTHON, blocks=[], modes=BOTH)
    assert (outcome.kind, outcome.tests) == ("added", (f"{ELM}::ElmModelTest::{TEST}",))
    assert trees.tests(trees.base) == before
