"""Every modeling file of the repaired tree imports, as it does in the release."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measure.conftest import Runner
from tests.measure.import_script import modules

pytestmark = [pytest.mark.both, pytest.mark.torch, pytest.mark.slow]

FEWEST_MODULES = 360
"""4.57.6 has 367, 5.23.0 has 530."""


@pytest.fixture(scope="module")
def repaired(repaired_tree: Path, run_on_trees: Runner) -> dict[str, str | None]:
    """What becomes of each module of the repaired tree: None where it imports, else its error."""
    outcomes: dict[str, str | None] = run_on_trees("import_script", {"repaired": repaired_tree})["repaired"]
    return outcomes


def test_the_repaired_tree_has_the_modules_of_the_release(
    repaired: dict[str, str | None], released_tree: Path
) -> None:
    assert [*repaired] == modules(released_tree)
    assert len(repaired) > FEWEST_MODULES


def test_what_fails_to_import_fails_alike_in_the_release_for_want_of_a_dependency(
    repaired: dict[str, str | None], released_tree: Path, run_on_trees: Runner
) -> None:
    failed = {name: error for name, error in repaired.items() if error}
    if failed:
        assert run_on_trees("import_script", {"released": released_tree}, *failed)["released"] == failed
    strange = {
        name: error for name, error in failed.items() if not error.startswith(("ModuleNotFoundError", "ImportError"))
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
