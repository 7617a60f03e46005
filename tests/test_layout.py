"""What the folders promise: imports go one way, the static half needs no torch, files stay short.

Each checker is also run on a small tree in which the promise is broken.
"""

from __future__ import annotations

import ast
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "model_patches": {"model_patches"},
    "codemods": {"codemods", "model_patches"},
    "ckpt_surgery": {"ckpt_surgery", "codemods", "model_patches"},
}
OURS = {*MAY_IMPORT, "benchmarks", "tests"}
STATIC = ("codemods", "model_patches", "ckpt_surgery/source")
HEAVY = {"torch", "transformers"}
MOST_LINES = 450

STATIC_MODULES = """
import importlib, pkgutil, sys
for name in ("codemods", "model_patches", "ckpt_surgery.source"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
import ckpt_surgery.cli
print(*sorted({"torch", "transformers"} & set(sys.modules)))
"""


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file, at any depth: its line and the absolute name of the module."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            yield node.lineno, ".".join([*above, *filter(None, [node.module])])


def wrong_way_imports(root: Path) -> list[str]:
    """Imports among our own packages that are not one of the design's arrows."""
    return [
        f"{path.relative_to(root)}:{line}: {package} imports {module}"
        for package, allowed in MAY_IMPORT.items()
        for path in sorted((root / package).rglob("*.py"))
        for line, module in imports(path, root)
        if module.split(".")[0] in OURS - allowed
    ]


def heavy_imports(root: Path) -> list[str]:
    """Imports of torch or transformers in the half that has to work without them."""
    return [
        f"{path.relative_to(root)}:{line}: {module}"
        for folder in STATIC
        for path in sorted((root / folder).rglob("*.py"))
        for line, module in imports(path, root)
        if module.split(".")[0] in HEAVY
    ]


def long_files(root: Path) -> list[str]:
    """Files of the three packages with more lines than anyone reads at once."""
    lengths = {
        path.relative_to(root): len(path.read_text(encoding="utf-8").splitlines())
        for package in MAY_IMPORT
        for path in sorted((root / package).rglob("*.py"))
    }
    return [f"{path}: {lines} lines" for path, lines in lengths.items() if lines > MOST_LINES]


def write(root: Path, name: str, text: str) -> Path:
    """A file in a tree of its own; returns the top of that tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def test_imports_go_one_way() -> None:
    assert wrong_way_imports(ROOT) == []


@pytest.mark.parametrize(
    ("name", "text", "module"),
    [
        ("model_patches/a.py", "import codemods.finding\n", "codemods.finding"),
        ("codemods/a.py", "from ckpt_surgery.source import results\n", "ckpt_surgery.source"),
        ("codemods/sub/a.py", "def f():\n    import ckpt_surgery\n", "ckpt_surgery"),
        ("ckpt_surgery/a.py", "from tests.codemods import tools\n", "tests.codemods"),
        ("ckpt_surgery/runtime/a.py", "import benchmarks\n", "benchmarks"),
        ("model_patches/sub/a.py", "from ...codemods import finding\n", "codemods"),
    ],
    ids=["upwards", "from the top", "inside a function", "tests", "benchmarks", "relative"],
)
def test_an_import_the_other_way_is_seen(tmp_path: Path, name: str, text: str, module: str) -> None:
    (fault,) = wrong_way_imports(write(tmp_path, name, text))
    assert fault.startswith(f"{name}:")
    assert fault.endswith(f" imports {module}")


def test_relative_imports_inside_a_package_are_no_fault(tmp_path: Path) -> None:
    tree = write(tmp_path, "codemods/sub/a.py", "from . import b\nfrom .. import c\nfrom ..finding import Edit\n")
    assert wrong_way_imports(tree) == []


def test_the_static_half_imports_neither_torch_nor_transformers() -> None:
    assert heavy_imports(ROOT) == []


@pytest.mark.parametrize("folder", STATIC)
@pytest.mark.parametrize("text", ["import torch.nn\n", "def f():\n    from transformers import AutoModel\n"])
def test_a_heavy_import_in_the_static_half_is_seen(tmp_path: Path, folder: str, text: str) -> None:
    assert len(heavy_imports(write(tmp_path, f"{folder}/a.py", text))) == 1


def test_a_heavy_import_elsewhere_is_no_fault(tmp_path: Path) -> None:
    assert heavy_imports(write(tmp_path, "ckpt_surgery/runtime/a.py", "import torch\n")) == []


def test_importing_the_static_half_and_the_command_line_loads_neither_of_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STATIC_MODULES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_no_file_is_too_long() -> None:
    assert long_files(ROOT) == []


def test_a_long_file_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "codemods/just_right.py", "x = 1\n" * MOST_LINES)
    tree = write(tmp_path, "codemods/long.py", "x = 1\n" * (MOST_LINES + 1))
    assert long_files(tree) == ["codemods/long.py: 451 lines"]


def test_each_package_has_typing_and_is_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for package in MAY_IMPORT:
        assert (ROOT / package / "py.typed").is_file()
        assert f"{package}*" in project["tool"]["setuptools"]["packages"]["find"]["include"]


def test_the_formatter_that_libcst_is_given_changes_nothing() -> None:
    configuration = yaml.safe_load((ROOT / ".libcst.codemod.yaml").read_text(encoding="utf-8"))
    source = b"x = {'a':1}  # kept\r\n"
    assert subprocess.check_output(configuration["formatter"], input=source) == source


def test_the_hooks_name_commands_that_are_installed() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert {hook["entry"].split()[0] for hook in hooks} <= set(scripts)
    assert [hook["entry"].split()[1] for hook in hooks] == ["check", "apply"]


def test_continuous_integration_has_something_to_run() -> None:
    assert (ROOT / ".ci/run").stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("python", ["false", "no-such-python"], ids=["too old", "not there"])
def test_make_says_in_one_sentence_that_the_python_will_not_do(python: str) -> None:
    command = ["make", "--no-print-directory", "tools", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{python} is not Python 3.11 or later: name one that is" in done.stderr
    assert "Traceback" not in done.stderr
