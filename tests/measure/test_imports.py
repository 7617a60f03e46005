"""Every modeling file that a repair may have broken imports as it does in the release."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measure.conftest import Runner
from tests.measure.import_script import modules

pytestmark = [pytest.mark.both, pytest.mark.torch, pytest.mark.slow]

FEWEST_MODULES = 50
"""The modules that are changed or import a changed one: 57 in 4.57.6, 59 in 5.23.0."""


@pytest.fixture(scope="module")
def repaired(repaired_tree: Path, released_tree: Path, run_on_trees: Runner) -> dict[str, str | None]:
    """Import each module that the repair can have broken; return None or its error."""
    names = touched(released_tree, repaired_tree)
    outcomes: dict[str, str | None] = run_on_trees("import_script", {"repaired": repaired_tree}, *names)["repaired"]
    return outcomes


def touched(released: Path, repaired: Path) -> list[str]:
    """Collect the modules that differ from the release, and those that import one."""
    texts = {name: [source(tree, name) for tree in (released, repaired)] for name in modules(released)}
    changed = {name for name, (before, after) in texts.items() if before != after}
    imports = {f"from ..{name.removeprefix('transformers.models.')} import" for name in changed}
    return [name for name, (_, after) in texts.items() if name in changed or any(line in after for line in imports)]


def source(tree: Path, module: str) -> str:
    return (tree / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def test_the_repaired_tree_keeps_its_modules_and_the_touched_ones_import(
    repaired: dict[str, str | None], repaired_tree: Path, released_tree: Path
) -> None:
    assert modules(repaired_tree) == modules(released_tree)
    assert len(repaired) > FEWEST_MODULES
    assert None in repaired.values()


def test_missing_dependencies_break_the_same_imports_in_the_release(
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
