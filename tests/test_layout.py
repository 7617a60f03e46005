"""The promises of the folders: imports go one way, the static half needs no torch, files stay short.

Each checker also runs on a small tree that breaks the promise.
"""

from __future__ import annotations

import ast
import importlib
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ckpt_surgery.version import __version__

ROOT = Path(__file__).parent.parent
PACKAGE = "ckpt_surgery"
BASE = {"errors", "text", "torch_names", "version", "optional", "undo", "flops"}
"""Modules below every part of the package: any part may import them, and they only one another."""
INNER_LAYERS = {
    "codemods": (
        {"facts", "wording"},
        {"repair"},
        {"scripts"},
        {"providers"},
        {"tree", "extract"},
        {"worth"},
        {"edits"},
        {"repairs"},
        {"commands", "finding"},
        {"rules"},
    ),
    "runtime": ({"tools"}, {"blocks"}, {"self_check", "offload"}, {"selective"}, {"checkpoint"}, {"surgery"}),
    "upstream": ({"layout", "options"}, {"plan", "evidence"}, {"run"}),
}
"""The files and folders of these parts by layer, lowest first; imports go down only. No rule imports another."""
OURS = {PACKAGE, "benchmarks", "tests", "codemods", "model_patches"}
STATIC = ("codemods", "model_patches", "static")
HEAVY = {"torch", "transformers"}
MOST_LINES = 450

STATIC_MODULES = """
import importlib, pkgutil, sys
for name in ("codemods", "model_patches", "static"):
    package = importlib.import_module(f"ckpt_surgery.{name}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
import ckpt_surgery.cli.main
print(*sorted({"torch", "transformers"} & set(sys.modules)))
"""


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield every import of a file, at any depth: its line and the absolute name of what is imported."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def modules(root: Path) -> dict[str, Path]:
    """Find every module of the package, the linked folders included, by its dotted name."""
    files = sorted(
        path for top in (root / PACKAGE).glob("*") for path in (top.rglob("*.py") if top.is_dir() else [top])
    )
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in files if path.suffix == ".py"}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def part_of(module: str) -> str:
    """Return the part of the package that a module is in; empty for the package itself."""
    return module.split(".")[1] if module.count(".") else ""


def drawn_arrows() -> dict[str, set[str]]:
    """Read each part's imports from the drawing of docs/architecture.md."""
    drawing = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("```")[1]
    arrows = re.findall(r"(\w+)(?:\[[^]]*\])? --> (\w+)", drawing)
    return {part: {near for start, near in arrows if start == part} for arrow in arrows for part in arrow}


def reached(part: str, graph: dict[str, set[str]]) -> set[str]:
    """Collect the parts that a part leads to."""
    return graph[part] | {far for near in graph[part] for far in reached(near, graph)}


def wrong_way_imports(root: Path) -> list[str]:
    """Find imports of a part to which no arrow of the drawing leads, and those that bypass the package."""
    arrows = drawn_arrows()
    allowed = {part: reached(part, arrows) | BASE | {part} for part in arrows} | dict.fromkeys(BASE, BASE)
    return [
        f"{path.relative_to(root)}:{line}: {part_of(name)} imports {module}"
        for name, path in modules(root).items()
        for line, module in imports(path, root)
        if module.split(".")[0] in OURS - {PACKAGE}
        or (
            module.startswith(f"{PACKAGE}.")
            and part_of(name) in allowed
            and part_of(module) not in allowed[part_of(name)]
        )
    ]


def wrong_way_inside(root: Path) -> list[str]:
    """Find imports inside a part from the same layer or a higher one, and of one rule by another."""
    faults = []
    for name, path in modules(root).items():
        prefix, layers = f"{PACKAGE}.{part_of(name)}.", INNER_LAYERS.get(part_of(name), ())
        height = {inner: index for index, names in enumerate(layers) for inner in names}
        here = name.removeprefix(prefix).split(".")
        for line, module in imports(path, root) if layers and name.startswith(prefix) else ():
            there = module.removeprefix(prefix).split(".")
            if not module.startswith(prefix) or there[:2] == here[:2] or (there[0] == here[0] != "rules"):
                continue
            if height.get(there[0], len(layers)) >= height[here[0]]:
                faults.append(f"{path.relative_to(root)}:{line}: {here[0]} imports {module}")
    return faults


def import_cycles(root: Path) -> list[str]:
    """Find files that import themselves through others."""
    files = modules(root)
    graph = {
        name: {
            module
            for _, target in imports(path, root)
            for module in (target, target.rpartition(".")[0])
            if module in files
        }
        for name, path in files.items()
    }
    faults = []
    for name, targets in graph.items():
        reached: set[str] = set()
        waiting = set(targets) - {name}
        while waiting:
            module = waiting.pop()
            reached.add(module)
            waiting |= graph[module] - reached
        if name in reached:
            faults.append(name)
    return faults


def heavy_imports(root: Path) -> list[str]:
    """Find imports of torch or transformers in the half that has to work without them."""
    return [
        f"{path.relative_to(root)}:{line}: {module}"
        for name, path in modules(root).items()
        if part_of(name) in STATIC
        for line, module in imports(path, root)
        if module.split(".")[0] in HEAVY
    ]


def long_files(root: Path) -> list[str]:
    """Find files of the package that are too long to read."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules(root).values()}
    return [f"{path.relative_to(root)}: {lines} lines" for path, lines in lengths.items() if lines > MOST_LINES]


def shared_class_names(root: Path) -> dict[str, list[str]]:
    """Find names that several classes of the package have, with their modules."""
    homes: dict[str, list[str]] = {}
    for module, path in modules(root).items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    return {name: where for name, where in homes.items() if len(where) > 1}


def imported_parts() -> dict[str, set[str]]:
    """Find the parts that each part imports, except the modules in `BASE`."""
    graph: dict[str, set[str]] = {part: set() for part in drawn_arrows()}
    for name, path in modules(ROOT).items():
        for _, module in imports(path, ROOT):
            if (
                module.startswith(f"{PACKAGE}.")
                and part_of(name) in graph
                and part_of(module) in graph.keys() - {part_of(name)}
            ):
                graph[part_of(name)].add(part_of(module))
    return graph


def write(root: Path, name: str, text: str) -> Path:
    """Write a file into a small tree of its own; return the top of that tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def test_imports_go_one_way() -> None:
    assert wrong_way_imports(ROOT) == []


@pytest.mark.parametrize(
    ("name", "text", "module"),
    [
        ("model_patches/a.py", "import ckpt_surgery.codemods.finding\n", "ckpt_surgery.codemods.finding"),
        ("measure/a.py", "from ckpt_surgery import verify\n", "ckpt_surgery.verify"),
        ("report/a.py", "from ckpt_surgery.tiny import tiny_model\n", "ckpt_surgery.tiny.tiny_model"),
        ("runtime/a.py", "from codemods import finding\n", "codemods.finding"),
        ("model_patches/sub/a.py", "from ...codemods import finding\n", "ckpt_surgery.codemods.finding"),
    ],
    ids=[
        "upwards",
        "from the front",
        "a sibling",
        "a folder as a package",
        "relative",
    ],
)
def test_an_import_the_other_way_is_seen(tmp_path: Path, name: str, text: str, module: str) -> None:
    (fault,) = wrong_way_imports(write(tmp_path, f"{PACKAGE}/{name}", text))
    assert fault.startswith(f"{PACKAGE}/{name}:")
    assert fault.endswith(f" imports {module}")


def test_imports_inside_a_part_go_one_way() -> None:
    assert wrong_way_inside(ROOT) == []


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("codemods/facts/a.py", "codemods.scripts.signs.signs"),
        ("codemods/facts/a.py", "codemods.finding.Finding"),
        ("codemods/rules/a.py", "codemods.rules.b.RULE"),
        ("upstream/evidence/a.py", "upstream.run.git.Git"),
        ("runtime/blocks/a.py", "runtime.surgery.options.SurgeryOptions"),
    ],
)
def test_an_import_the_other_way_inside_a_part_is_seen(tmp_path: Path, name: str, module: str) -> None:
    parent, _, imported = f"{PACKAGE}.{module}".rpartition(".")
    tree = write(tmp_path, f"{PACKAGE}/{name}", f"from {parent} import {imported}\n")
    (fault,) = wrong_way_inside(tree)
    assert fault.endswith(f" imports {PACKAGE}.{module}")


def test_linked_folders_are_looked_into(tmp_path: Path) -> None:
    tree = write(tmp_path, "codemods/a.py", "import ckpt_surgery.cli\n")
    (tree / PACKAGE).mkdir()
    (tree / PACKAGE / "codemods").symlink_to(tree / "codemods", target_is_directory=True)
    assert len(wrong_way_imports(tree)) == 1


def test_no_file_imports_itself_through_others() -> None:
    assert import_cycles(ROOT) == []


@pytest.mark.parametrize(
    "text", ["from ckpt_surgery.runtime import b\n", "def f():\n    import ckpt_surgery.runtime.b\n"]
)
def test_a_cycle_of_files_is_seen(tmp_path: Path, text: str) -> None:
    write(tmp_path, f"{PACKAGE}/runtime/a.py", text)
    write(tmp_path, f"{PACKAGE}/runtime/b.py", "from ckpt_surgery.runtime.c import x\n")
    write(tmp_path, f"{PACKAGE}/runtime/d.py", "from ckpt_surgery.runtime.a import x\n")
    tree = write(tmp_path, f"{PACKAGE}/runtime/c.py", "from ckpt_surgery.runtime.a import x\n")
    assert import_cycles(tree) == [f"{PACKAGE}.runtime.{name}" for name in "abc"]


def test_the_static_half_imports_neither_torch_nor_transformers() -> None:
    assert heavy_imports(ROOT) == []


@pytest.mark.parametrize("folder", STATIC)
@pytest.mark.parametrize("text", ["import torch.nn\n", "def f():\n    from transformers import AutoModel\n"])
def test_a_heavy_import_in_the_static_half_is_seen(tmp_path: Path, folder: str, text: str) -> None:
    assert len(heavy_imports(write(tmp_path, f"{PACKAGE}/{folder}/a.py", text))) == 1


def test_the_static_half_and_the_cli_load_neither_torch_nor_transformers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STATIC_MODULES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_the_drawings_show_the_imports_that_there_are() -> None:
    graph = imported_parts()
    needed = {
        (part, near)
        for part, parts in graph.items()
        for near in parts
        if not any(near in reached(other, graph) for other in parts)
    }
    assert {(part, near) for part, parts in drawn_arrows().items() for near in parts} == needed
    folders = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == graph.keys()


@pytest.mark.parametrize("name", ["codemods", "model_patches"])
def test_a_linked_folder_is_refused_under_its_short_name(name: str) -> None:
    with pytest.raises(ImportError, match=f"import it as {PACKAGE}.{name}"):
        importlib.import_module(name)


def test_no_file_is_too_long() -> None:
    assert long_files(ROOT) == []


def test_a_long_file_is_seen(tmp_path: Path) -> None:
    write(tmp_path, f"{PACKAGE}/codemods/just_right.py", "x = 1\n" * MOST_LINES)
    tree = write(tmp_path, f"{PACKAGE}/codemods/long.py", "x = 1\n" * (MOST_LINES + 1))
    assert long_files(tree) == [f"{PACKAGE}/codemods/long.py: 451 lines"]


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == __version__


def test_no_two_classes_share_a_name() -> None:
    assert shared_class_names(ROOT) == {}


def test_a_class_name_used_twice_is_seen(tmp_path: Path) -> None:
    write(tmp_path, f"{PACKAGE}/runtime/a.py", "class Plan: ...\n")
    tree = write(tmp_path, f"{PACKAGE}/upstream/b.py", "def f():\n    class Plan: ...\n")
    assert shared_class_names(tree) == {"Plan": [f"{PACKAGE}.runtime.a", f"{PACKAGE}.upstream.b"]}


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
