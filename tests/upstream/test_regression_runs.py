"""Our own test run by pytest on toy models: each of its three checks is red on what is broken, and green after."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckpt_surgery.upstream.interpreter import Interpreter
from ckpt_surgery.upstream.pytest_run import PytestRun, run_pytest
from ckpt_surgery.upstream.regression import family_tests, regression
from ckpt_surgery.upstream.regression_method import TEST, method, with_method
from ckpt_surgery.verification.results import Mode
from tests.upstream.regression_toys import (
    COMMON,
    COMMON_TEXT,
    ELM,
    FORGETFUL,
    KEYWORD,
    MODEL,
    MODELING_TEXT,
    PLAIN,
    TEST_TEXT,
    make,
)

pytestmark = pytest.mark.torch

PYTHON = Interpreter(Path(sys.executable))
BOTH: tuple[Mode, ...] = ("non_reentrant", "reentrant")
BROKEN = {"elm": None, "plain": PLAIN, "keyword": KEYWORD, "forgetful": FORGETFUL}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> PytestRun:
    """The test in one family for each way of being broken, and one that is not, in one run."""
    files = {}
    text = with_method(TEST_TEXT, ["ElmModelTest"], method(["ElmLayer"], BOTH, ""))
    for family, damage in BROKEN.items():
        model = MODELING_TEXT.replace(*damage) if damage else MODELING_TEXT
        files[MODEL.replace("elm", family)] = model
        files[ELM.replace("elm", family)] = text.replace(
            "models.elm.modeling_elm", f"models.{family}.modeling_{family}"
        )
        files |= {f"{top}/models/{family}/__init__.py": "" for top in ("src/transformers", "tests")}
    trees = make(tmp_path_factory.mktemp("checkout"), files=files)
    return run_pytest(PYTHON, trees.series, ["tests/models"], names=TEST)


def test_it_passes_where_all_is_well(run: PytestRun) -> None:
    assert [run.results[name].outcome for name in run.results if "/elm/" in name] == ["passed"]


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("plain", "these blocks are not recomputed"),
        ("keyword", "Items in the first set but not the second:\n'bias."),
        ("forgetful", "these gradients are others than without checkpointing"),
    ],
)
def test_it_fails_where_something_is_broken(run: PytestRun, family: str, told: str) -> None:
    assert [run.results[name].outcome for name in run.results if f"/{family}/" in name] == ["failed"]
    output = "\n".join(line.removeprefix("E").strip() for line in run.ran.output.splitlines())
    assert told in output


@pytest.mark.slow
def test_a_whole_regression_with_excuses_taken_out(tmp_path: Path) -> None:
    trees = make(tmp_path, PLAIN)
    found = regression("elm", trees.base, trees.series, PYTHON, blocks=["ElmLayer"], modes=BOTH)
    assert (found.kind, len(found.tests)) == ("exception removed", 1)
    assert found.before is not None
    assert found.after is not None
    assert "1 failed" in found.before.output
    assert "1 passed" in found.after.output
    assert family_tests("elm", trees.base, trees.series, PYTHON).status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("damage", [KEYWORD, FORGETFUL], ids=["a lost gradient", "wrong gradients"])
def test_a_whole_regression_with_a_test_of_our_own(tmp_path: Path, damage: tuple[str, str]) -> None:
    free = COMMON_TEXT.replace('["elm"]', '["oak"]')
    trees = make(tmp_path, damage, files={COMMON: free})
    before = trees.tests(trees.base)
    found = regression("elm", trees.base, trees.series, PYTHON, blocks=[], modes=BOTH)
    assert (found.kind, found.tests) == ("added", (f"{ELM}::ElmModelTest::{TEST}",))
    assert trees.tests(trees.base) == before
    assert (trees.base / COMMON).read_text() == (trees.series / COMMON).read_text() == free
