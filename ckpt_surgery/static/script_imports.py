"""What a script imports from its own folder: found by names and files, as Python would look there first.

Only imports that are written out are followed, wherever in a file they stand. Nothing is imported.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ckpt_surgery.static.discover import matches, source_at

MOST_FILES = 500
"""So many files are followed from one script: a script that reaches more is a package, and named as a folder."""


def imported_files(scripts: Sequence[Path], known: Collection[Path], exclude: Collection[str] = ()) -> list[Path]:
    """The files in the scripts' own folders that they import, directly or not, and that are not known already."""
    seen = {os.path.realpath(path) for path in known} if scripts else set()
    found: list[Path] = []
    for script in scripts:
        folder = script.parent
        real = os.path.realpath(folder) + os.sep
        waiting = [script]
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
    source = source_at(os.fspath(path))
    try:
        tree = ast.parse(source.text if source else "")
    except (SyntaxError, ValueError, RecursionError):  # told as a problem where the file is checked
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, alias.name)
        elif isinstance(node, ast.ImportFrom) and (not node.level or path.parent != folder):
            start = path.parents[min(node.level, len(path.parents)) - 1] if node.level else folder
            for alias in node.names:
                yield from _files(start, f"{node.module or ''}.{alias.name}")


def _files(folder: Path, name: str) -> Iterator[Path]:
    """The file of a module, and those that run before it: the packages around it."""
    for part in filter(None, name.split(".")):
        folder = folder / part
        file = folder.with_name(f"{part}.py")
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        elif file.is_file():
            yield file
            return
        elif not folder.is_dir():
            return
