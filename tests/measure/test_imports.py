"""Every modeling file of the repaired tree imports, as it does in the release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.measure.conftest import Runner

pytestmark = [pytest.mark.both, pytest.mark.torch, pytest.mark.slow]

FEWEST_MODULES = 360
"""4.57.6 has 367, 5.23.0 has 530."""


@pytest.fixture(scope="module")
def outcomes(released_tree: Path, repaired_tree: Path, run_on_trees: Runner) -> dict[str, Any]:
    return run_on_trees("import_script", {"released": released_tree, "repaired": repaired_tree})


def test_the_repaired_tree_has_the_modules_of_the_release(outcomes: dict[str, Any]) -> None:
    assert outcomes["repaired"].keys() == outcomes["released"].keys()
    assert len(outcomes["repaired"]) > FEWEST_MODULES


def test_what_fails_to_import_fails_alike_in_the_release_for_want_of_a_dependency(outcomes: dict[str, Any]) -> None:
    released, repaired = ({n: e for n, e in outcomes[tree].items() if e} for tree in ("released", "repaired"))
    assert repaired == released
    strange = {
        name: error for name, error in repaired.items() if not error.startswith(("ModuleNotFoundError", "ImportError"))
    }
    assert not strange


def test_a_module_that_does_not_import_is_seen(tmp_path: Path, run_on_trees: Runner) -> None:
    package = tmp_path / "transformers"
    for name, text in {
        "__init__.py": "",
        "models/__init__.py": "",
        "models/good/modeling_good.py": "x = 1",
        "models/bad/modeling_bad.py": "class A(Missing): pass",
        "models/worse/modeling_worse.py": "class A(",
        "models/other/modeling_tf_other.py": "import tensorflow",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    outcome = run_on_trees("import_script", {"broken": tmp_path})["broken"]
    assert outcome.keys() == {f"transformers.models.{n}.modeling_{n}" for n in ("good", "bad", "worse")}
    assert outcome["transformers.models.good.modeling_good"] is None
    assert outcome["transformers.models.bad.modeling_bad"] == "NameError: name 'Missing' is not defined"
    assert outcome["transformers.models.worse.modeling_worse"].startswith("SyntaxError: '(' was never closed")
