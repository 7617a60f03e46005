"""The scripts of a toy checkout's `utils/`: our own small rules behind upstream's command lines.

`toy_checkout` copies this file there; it needs the standard library only.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HEADER = """\
# This file was automatically generated from src/transformers/models/{family}/modular_{family}.py.
# Change the modular file and run the converter again.
# Checkpointed classes: {count}
"""
COPIED = re.compile(r"^# Copied from transformers\.models\.(\w+)\.\w+\.(\w+)(?: with (\w+)->(\w+))?\n", re.MULTILINE)
MODELS = Path("src/transformers/models")
LAYER = "GradientCheckpointingLayer"
CACHE = Path(__file__).with_name(".checkers_cache.json")
CHECKERS = ("copies", "modular_conversion", "docstrings", "repo", "inits", "ruff_check", "ruff_format")
FIXABLE = ("copies", "modular_conversion", "docstrings")


def classes(path: Path) -> dict[str, str]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    return {node.name: segment(source, node) for node in tree.body if isinstance(node, ast.ClassDef)}


def segment(source: str, node: ast.stmt) -> str:
    return ast.get_source_segment(source, node) or ""


def imports(source: str) -> Iterator[str]:
    """Return the imports at the top of a file, without those of another model."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.level != 2):
            yield segment(source, node)


def generate(modular: Path) -> str:
    """Generate the modeling file of a modular file: an empty subclass becomes its parent, under its own name."""
    family = modular.parent.name
    source = modular.read_text(encoding="utf-8")
    parents: dict[str, str] = {}
    lines = list(imports(source))
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
            name = node.module.split(".")[0]
            path = modular.parents[1] / name / f"modeling_{name}.py"
            lines += imports(path.read_text(encoding="utf-8"))
            own = {old: text.replace(name.title(), family.title()) for old, text in classes(path).items()}
            parents.update(own)
    parts = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            base = ast.unparse(node.bases[0]) if node.bases else ""
            empty = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            parts.append(parents[base] if empty and base in parents else segment(source, node))
    body = "\n\n\n".join(parts)
    used = sorted(
        {line for line in lines if line.split()[-1] in body}, key=lambda line: (line.startswith("from ."), line)
    )
    absolute = [line for line in used if not line.startswith("from .")]
    relative = [line for line in used if line.startswith("from .")]
    head = "\n\n".join("\n".join(group) for group in (absolute, relative) if group)
    header = HEADER.format(family=family, count=body.count(f"({LAYER})"))
    return f"{header}{head}\n\n\n{body}\n"


def changed_models() -> set[str]:
    """List the models that differ from this branch's start on main; fail if there is no main."""
    fork = subprocess.check_output(["git", "merge-base", "main", "HEAD"], text=True).strip()
    names = subprocess.check_output(["git", "diff", "--name-only", fork], text=True).splitlines()
    return {name.split("/")[-2] for name in names if "/models/" in name}


def overwrite(path: Path, text: str, fix: bool) -> bool:
    """Tell whether the file is out of date; with `fix`, rewrite it."""
    if path.read_text(encoding="utf-8") == text:
        return False
    print(f"{'Rewrote' if fix else 'Differs:'} {path}")
    if fix:
        path.write_text(text, encoding="utf-8")
    return True


def modular_conversion(fix: bool, check_all: bool, files: list[str]) -> bool:
    """Generate the modeling files of the models in the diff, and of those that inherit from one."""
    changed = changed_models()
    changes = False
    for modular in [Path(file) for file in files] or sorted(MODELS.glob("*/modular_*.py")):
        parents = set(re.findall(r"^from \.\.(\w+)", modular.read_text(encoding="utf-8"), re.MULTILINE))
        if check_all or (parents | {modular.parent.name}) & changed:
            changes |= overwrite(modular.with_name(f"modeling_{modular.parent.name}.py"), generate(modular), fix)
    return changes


def copies(fix: bool) -> bool:
    """Compare copied classes with their originals."""
    changes = False
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        text = source = path.read_text(encoding="utf-8")
        for match in COPIED.finditer(source):
            family, name, old, new = match.groups()
            original = classes(MODELS / family / f"modeling_{family}.py")[name]
            expected = original.replace(old, new) if old else original
            here = classes(path)[expected.split("(")[0].removeprefix("class ")]
            if here != expected:
                text = text.replace(here, expected)
                line = expected.split("\n")[0]
                if f"({LAYER})" in line and f"import {LAYER}" not in text:
                    late = "from ...modeling_utils"
                    text = text.replace(late, f"from ...modeling_layers import {LAYER}\n{late}", 1)
        changes |= overwrite(path, text, fix)
    return changes


def complains(name: str) -> bool:
    """Tell whether the checker is configured to fail: always, or once a model is repaired."""
    import toy_settings  # type: ignore[import-not-found]  # stands beside this file where it runs

    if name in toy_settings.FAILING_BEFORE:
        print(f"{name}: something is wrong here")
        return True
    repaired = any(LAYER in path.read_text(encoding="utf-8") for path in MODELS.glob("*/modeling_*.py"))
    if repaired and name in toy_settings.FAILING:
        print(f"{name}: a model uses {LAYER}")
        return True
    return False


def ruff(name: str, fix: bool) -> bool:
    """Run the ruff that the path finds first."""
    options = {("ruff_check", True): ["--fix"], ("ruff_format", False): ["--check"]}.get((name, fix), [])
    return subprocess.run(["ruff", name.removeprefix("ruff_"), "src", "tests", *options], check=False).returncode != 0


def run(name: str, fix: bool, check_all: bool = False, files: list[str] | None = None) -> bool:
    """Run one checker; return whether something is wrong. With `fix`, repair it where the checker can."""
    if name == "modular_conversion":
        wrong = modular_conversion(fix, check_all, files or []) and not fix
    elif name == "copies":
        wrong = copies(fix) and not fix
    elif name.startswith("ruff_"):
        wrong = ruff(name, fix)
    else:
        wrong = False
    return complains(name) or wrong


def script(name: str) -> None:
    """Run the command line of one check script."""
    words = sys.argv[1:]
    files = [word for word in words if not word.startswith("--")]
    if run(name, "--fix_and_overwrite" in words, "--check_all" in words, files):
        raise ValueError(f"{name} found something")


def checkers(cache_option: str = "") -> None:
    """Run the command line of the runner of all checkers. A cache spares files unless `--no-cache` is given."""
    known_options = {"--fix", "--keep-going", "--list", cache_option}
    options = {word for word in sys.argv[1:] if word.startswith("-")}
    words = [word for word in sys.argv[1:] if word not in options]
    if options - known_options or not words:
        sys.exit(f"usage: checkers.py {' '.join(sorted(known_options))} checkers [checkers ...]")
    if "--list" in options:
        for name in sorted(CHECKERS):
            print(f"  {name:25s} The {name} (custom, {'fixable' if name in FIXABLE else 'check-only'})")
        return
    names = " ".join(words).split(",")
    if unknown := set(names) - set(CHECKERS):
        sys.exit(f"Unknown checkers: {unknown}")
    failed = [name for name in names if run(name, "--fix" in options)]
    if cache_option and not options & {"--fix", cache_option}:
        CACHE.write_text("{}\n", encoding="utf-8")
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")
    print(f"All {len(names)} checks passed.")
