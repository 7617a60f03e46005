"""Every modeling file that a repair may have broken imports as it does in the release."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measure.conftest import Runner

pytestmark = [pytest.mark.both, pytest.mark.torch, pytest.mark.slow]

FEWEST_MODULES = 50
"""The modules that are changed or import a changed one: 57 in 4.57.6, 59 in 5.23.0."""


def modules(tree: Path) -> dict[str, str]:
    """Read the PyTorch modeling files of the package in a tree."""
    files = sorted((tree / "transformers/models").glob("*/modeling_*.py"))
    return {
        f"transformers.models.{file.parent.name}.{file.stem}": file.read_text(encoding="utf-8")
        for file in files
        if not file.stem.startswith(("modeling_tf_", "modeling_flax_"))
    }


def touched(released: Path, repaired: Path) -> list[str]:
    """List the modules that differ from the release, and those that import one."""
    before, after = modules(released), modules(repaired)
    assert before.keys() == after.keys()
    changed = {name for name, text in after.items() if text != before[name]}
    imports = {f"from ..{name.removeprefix('transformers.models.')} import" for name in changed}
    return [name for name, text in after.items() if name in changed or any(line in text for line in imports)]


def test_what_a_repair_touched_imports_as_in_the_release(
    repaired_tree: Path, released_tree: Path, run_on_trees: Runner
) -> None:
    names = touched(released_tree, repaired_tree)
    assert len(names) > FEWEST_MODULES
    repaired = run_on_trees("import_script", {"repaired": repaired_tree}, *names)["repaired"]
    assert None in repaired.values()
    failed = {name: error for name, error in repaired.items() if error}
    assert all(error.startswith(("ModuleNotFoundError", "ImportError")) for error in failed.values()), failed
    if failed:  # of dependencies that are missing
        assert run_on_trees("import_script", {"released": released_tree}, *failed)["released"] == failed


def test_a_module_that_does_not_import_is_seen(tmp_path: Path, run_on_trees: Runner) -> None:
    package = tmp_path / "transformers"
    for name, text in {
        "__init__.py": "",
        "models/__init__.py": "",
        "models/good/modeling_good.py": "x = 1",
        "models/bad/modeling_bad.py": "class A(Missing): pass",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    outcome = run_on_trees("import_script", {"broken": tmp_path}, *modules(tmp_path))["broken"]
    good, bad = "transformers.models.good.modeling_good", "transformers.models.bad.modeling_bad"
    assert outcome == {good: None, bad: "NameError: name 'Missing' is not defined"}
