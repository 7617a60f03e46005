"""What a script imports from its own folder: found by names and files, as Python would look there first.

Only imports that are written out are followed, wherever in a file they stand. Nothing is imported.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ckpt_surgery.static.discover import MAX_BYTES, matches, read_source
from ckpt_surgery.static.results import Problem

MOST_FILES = 500
"""So many files are followed from one script: a script that reaches more is a package, and named as a folder."""


def imported_files(scripts: Sequence[str], known: Collection[Path], exclude: Collection[str] = ()) -> list[Path]:
    """The files in the scripts' own folders that they import, directly or not, and that are not known already."""
    seen = {os.path.realpath(path) for path in (*map(os.fspath, known), *scripts)}
    found: list[Path] = []
    for script in scripts:
        folder = Path(script).parent
        real = os.path.realpath(folder) + os.sep
        waiting = [Path(script)]
        followed = 0
        while waiting and followed < MOST_FILES:
            for path in _imports(waiting.pop(0), folder):
                place = os.path.realpath(path)
                if place in seen or not place.startswith(real) or matches(path, exclude):
                    continue
                seen.add(place)
                found.append(path)
                waiting.append(path)
                followed += 1
    return found


def _imports(path: Path, folder: Path) -> Iterator[Path]:
    source = read_source(path)
    if isinstance(source, Problem) or len(source.text) > MAX_BYTES:
        return
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError):  # told as a problem where the file is checked
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from _files(folder, alias.name.split("."))
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield from _from(folder, module.split("."), names)
            case ast.ImportFrom(level=level, module=module, names=names) if path.parent != folder:
                above = path.parents[level - 1] if level <= len(path.parents) else folder
                yield from _from(above, module.split(".") if module else [], names)


def _from(folder: Path, parts: list[str], names: Sequence[ast.alias]) -> Iterator[Path]:
    yield from _files(folder, parts)
    for alias in names:
        yield from _files(folder, [*parts, alias.name])


def _files(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The file of a module, and those that run before it: the packages around it."""
    for part in parts:
        folder = folder / part
        file = folder.with_name(f"{part}.py")
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        elif file.is_file():
            yield file
            return
        elif not folder.is_dir():
            return
