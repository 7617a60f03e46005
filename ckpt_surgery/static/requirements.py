"""Read what a package requires of transformers, from the text of its files; nothing is run."""

from __future__ import annotations

import ast
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from fnmatch import fnmatch, translate
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from ckpt_surgery.static.discover import folders_above

_Reader: TypeAlias = Callable[[str], Iterable[str]]
"""Finds the strings in the text of a file that may be requirements."""
_FOLDERS_ABOVE, _FOLDERS_BELOW = 8, 3
"""How many folders above a file are searched, and how deep."""
_NAME = "transformers"
_LINE = re.compile(rf"(?:[\w.-]+::)?({_NAME}(?![\w.-])(?:(?!\s--)[^;#\\])*)")
"""A requirement, perhaps with a channel of conda. What follows `;` (conditions) is left out, and so are hashes."""
_EXTRAS_AND_SPACE = re.compile(r"\[[^]]*\]|[()\s]")
_NAMES_RELEASE = re.compile(r"(?<!!)[<>=~]=*\s*\d")
"""A requirement without these admits the newest release, and so says nothing."""
_CARET = re.compile(r"^[\^~](?!=)")
_CONDA = re.compile(rf"^{_NAME}=(?!=)([^=,|]+).*")
_REQUIRES = re.compile(r"^Requires-Dist:(.*)", re.M)
_ITEM = re.compile(r"^\s*(?:-\s+)*[\"']?([^\"'\n]*)", re.M)
_DEPENDENCIES = re.compile(r"^dependencies:[ \t]*\n(?:[ \t]*(?:-.*|#.*|[ \t].*)?(?:\n|\Z))+", re.M)
_OF_CONDA = re.compile(rf"^\s*-\s*[\"']?(?:[\w.-]+::)?(?:pip:|python\s*[=<>]|{_NAME}\s*[=<>])", re.M)
_PIP = re.compile(r"\bpip3?\s+install\b(.*)|\buv\s+(?:pip\s+install|add)\b(.*)")
_FOLDERS = re.compile("|".join(map(translate, ("requirements*", "docker*", "conda", "conda?recipe*", "recipe*"))))
"""Folders beside a package that may hold its requirements."""


def required_transformers(path: str, read: Callable[[str], str | None]) -> dict[str, str]:
    """Return what the package of a file requires of transformers, its extras included.

    Each requirement comes with the file that states it: one that `_READERS` knows, in a folder above or in one of
    `_FOLDERS` there, or the metadata of an installed package. The first folder that names a release counts; none above
    the repository is searched.

    Args:
        path: a file of the package.
        read: returns the text of a file, or None where it cannot be read.
    """
    below = Path(path)
    for folder in folders_above(path, _FOLDERS_ABOVE):
        stated: dict[str, str] = {}
        for requirement, name in _of_folder(folder, below.name, read):
            stated.setdefault(requirement, name)
        if stated:
            return stated
        below = folder
    return {}


def _of_folder(folder: Path, part: str, read: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """Yield the requirements that a folder states for the file or folder `part` in it, and in which files."""
    stating = [(reader, name) for name in _names(folder) if (reader := _reader_of(name)) is not None]
    for reader, name in sorted(stating):
        if name.endswith(".dist-info"):
            if name.partition("-")[0].lower() != part.lower():
                record = read(os.fspath(folder / name / "RECORD")) or ""
                if f"\n{part}/" not in f"\n{record}":
                    continue
            name += "/METADATA"
        try:
            strings = [*_READERS[reader][-1](read(os.fspath(folder / name)) or "")]
        except (SyntaxError, ValueError, RecursionError, ConfigError):  # not what its name says
            continue
        for line in "\n".join(strings).splitlines():
            if (match := _LINE.match(line.strip())) and _NAMES_RELEASE.search(match[1]):
                yield _CONDA.sub(rf"{_NAME}==\1", _EXTRAS_AND_SPACE.sub("", match[1])), name


@lru_cache(maxsize=4096)
def _reader_of(name: str) -> int | None:
    """Return the index of the reader for a file, by its name and that of the folder it is in, if any."""
    place, file = name.partition("/")[0] if "/" in name else "", name.rpartition("/")[2]
    for number, (folder, pattern, _) in enumerate(_READERS):
        if fnmatch(place, folder) and fnmatch(file, pattern):
            return number
    return None


def _names(folder: Path, deeper: int = _FOLDERS_BELOW) -> Iterator[str]:
    """Yield the files of a folder, and those of the folders in it that hold requirements."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if deeper < _FOLDERS_BELOW or _FOLDERS.match(os.path.normcase(name)):
            yield from (f"{name}/{inner}" for inner in (_names(folder / name, deeper - 1) if deeper else ()))
        yield name


def _of_sections(text: str) -> Iterator[str]:
    parser = ConfigParser(interpolation=None)
    parser.read_string(text)
    for name in parser.sections():
        if name == "options" or name.startswith("options.extras_require"):
            yield from parser[name].values()


def _of_environment(text: str) -> Iterator[str]:
    """Yield the items of a conda environment; a file is one if it depends on Python, pip or transformers."""
    match = _DEPENDENCIES.search(text)
    if match and _OF_CONDA.search(match.group()):
        yield from _ITEM.findall(match.group())


def _of_commands(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        for match in _PIP.finditer("" if line.lstrip().startswith("#") else line):
            yield from shlex.split(match[1] or match[2])


def _of_table(value: object) -> Iterator[str]:
    """Yield every string in lists, and the requirement for a version by name, as Poetry writes it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _of_table(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            several = isinstance(item, list)
            for entry in item if several else [item]:
                version = entry.get("version") if isinstance(entry, dict) else None if several else entry
                if key == _NAME and isinstance(version, str):
                    # `^4.40` and `~4.40` name the oldest release, `4.40` the only one, `*` any.
                    exact = version[:1].isdigit()
                    yield _NAME + (f"=={version}" if exact else _CARET.sub(">=", version).removeprefix("*"))
                else:
                    yield from _of_table(entry)


_READERS: tuple[tuple[str, str, _Reader], ...] = (
    ("", "pyproject.toml", lambda text: _of_table(tomllib.loads(text))),
    (
        "",
        "setup.py",
        lambda text: (
            node.value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ),
    ),
    ("", "setup.cfg", _of_sections),
    ("*", "*requirements*.txt", str.splitlines),
    ("*", "*requirements*.in", str.splitlines),
    ("requirements*", "*.txt", str.splitlines),
    ("requirements*", "*.in", str.splitlines),
    ("*", "*env*.y*ml", _ITEM.findall),
    ("*", "*conda*.y*ml", _ITEM.findall),
    ("conda*", "*.y*ml", _ITEM.findall),
    ("*", "meta.yaml", _ITEM.findall),
    ("*", "*Dockerfile*", _of_commands),
    ("", "*.dist-info", _REQUIRES.findall),
    ("", "*docker*.y*ml", lambda text: ()),  # by their names, not conda's
    ("", "*ci.y*ml", lambda text: ()),
    ("", "[!.]*.y*ml", _of_environment),
)
"""The files that state requirements: patterns of the folder (of `_FOLDERS`; "" for none) and the name, and the reader
of the strings that may be requirements."""
