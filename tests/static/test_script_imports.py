"""`check` on a script reads what it imports from its own folder, and nothing else."""

from __future__ import annotations

from pathlib import Path

from ckpt_surgery import check
from ckpt_surgery.static.script_imports import imported_files

PATCH = """from transformers import Foo


def patch(model, fused):
    for layer in model.layers:
        layer.forward = fused
"""


def write(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return str(folder / "train.py")


def followed(folder: Path, files: dict[str, str], exclude: tuple[str, ...] = ()) -> set[str]:
    script = Path(write(folder, files))
    return {path.relative_to(folder).as_posix() for path in imported_files([script], [script], exclude)}


def test_a_finding_in_what_a_script_imports_is_told(tmp_path: Path) -> None:
    script = write(tmp_path, {"train.py": "from tools.patches import patch\n", "tools/patches.py": PATCH})
    (finding,) = check(script, cache=False).findings
    assert (finding.code, Path(finding.path).name, finding.line) == ("CKPT013", "patches.py", 6)


def test_imports_are_followed_through_packages_functions_and_dots(tmp_path: Path) -> None:
    files = {
        "train.py": "import a.b\n\ndef main():\n    from c import d\n",
        "a/__init__.py": "",
        "a/b.py": "from . import e\nfrom .f import g\nimport torch\n",
        "a/e.py": "raise SystemExit('never run')\n",
        "a/f.py": "import a.b\n",
        "c.py": "",
        "d.py": "",
        "unused.py": "",
    }
    assert followed(tmp_path, files) == {"a/__init__.py", "a/b.py", "a/e.py", "a/f.py", "c.py"}


def test_what_is_outside_the_folder_excluded_or_broken_is_left(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(PATCH)
    folder = tmp_path / "inside"
    files = {
        "train.py": "import outside, old, broken, linked\nfrom .. import outside\n",
        "broken.py": "(",
        "old.py": "",
    }
    write(folder, files)
    (folder / "linked.py").symlink_to(tmp_path / "outside.py")
    assert followed(folder, files, ("old.py",)) == {"broken.py"}


def test_a_folder_is_read_as_ever(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import tests.helpers\n", "tests/helpers.py": PATCH})
    assert not check(tmp_path, cache=False).findings
