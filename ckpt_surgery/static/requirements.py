"""What a package asks of transformers: the requirements in its metadata, read as text and never run."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path

from ckpt_surgery.static.discover import folders_above

_FOLDERS_ABOVE = 8
_NAME = "transformers"
_LINE = re.compile(rf"{_NAME}(?![\w.-])[^;#]*")
"""A requirement; what stands behind `;` says when it holds, and is left out."""
_EXTRAS_AND_SPACE = re.compile(r"\[[^]]*\]|[()\s]")
_CARET = re.compile(r"^[\^~](?!=)")
_USUAL = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
"""What is asked for even where it is not there: it may be there the next time."""


def required_transformers(path: str, read: Callable[[str], str | None]) -> tuple[str, ...]:
    """The requirements on transformers of the package that a file is in, those of its extras among them.

    They are in `pyproject.toml`, `setup.py`, `setup.cfg` or `requirements*.txt` of a folder above the file, or in the
    metadata of what is installed there: the first folder that has any, as far up as the repository. `read` gives the
    text of a file, or None.
    """
    below = Path(path)
    for folder in folders_above(path, _FOLDERS_ABOVE):
        found = tuple(dict.fromkeys(_of_folder(folder, below.name, read)))
        if found:
            return found
        below = folder
    return ()


def _of_folder(folder: Path, part: str, read: Callable[[str], str | None]) -> Iterator[str]:
    """The requirements that a folder states for the file or folder `part` in it."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in dict.fromkeys([*_USUAL, *names]):
        if name in _USUAL or (name.startswith("requirements") and name.endswith(".txt")):
            strings = _strings(name, read(os.fspath(folder / name)) or "")
        elif name.endswith(".dist-info") and _holds(folder / name, part, read):
            strings = re.findall("^Requires-Dist:(.*)", read(os.fspath(folder / name / "METADATA")) or "", re.M)
        else:
            continue
        for line in "\n".join(strings).splitlines():
            if match := _LINE.match(line.strip()):
                yield _EXTRAS_AND_SPACE.sub("", match.group())


def _holds(metadata: Path, part: str, read: Callable[[str], str | None]) -> bool:
    """Whether an installed distribution has a file or folder of this name."""
    if metadata.name.partition("-")[0].lower() == part.lower():
        return True
    record = read(os.fspath(metadata / "RECORD")) or ""
    return f"\n{part}/" in f"\n{record}"


def _strings(name: str, text: str) -> list[str]:
    """What may be requirements in a file of this name; nothing where it is not what its name says."""
    try:
        if name == "pyproject.toml":
            return [*_of_table(tomllib.loads(text))]
        if name == "setup.py":
            constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            return [value for value in constants if isinstance(value, str)]
        if name == "setup.cfg":
            parser = ConfigParser(interpolation=None)
            parser.read_string(text)
            sections = ("options", *(name for name in parser.sections() if name.startswith("options.extras_require")))
            return [value for section in sections if section in parser for value in parser[section].values()]
    except (SyntaxError, ValueError, RecursionError, ConfigError):
        return []
    return [text]


def _of_table(value: object) -> Iterator[str]:
    """Every string in lists, and the versions that Poetry has by name."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _of_table(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            version = item.get("version") if isinstance(item, dict) else item
            if key == _NAME and isinstance(version, str):
                # `^4.40` and `~4.40` are the oldest, `4.40` is the only one, `*` is any.
                exact = version[:1].isdigit()
                yield _NAME + (f"=={version}" if exact else _CARET.sub(">=", version).removeprefix("*"))
            else:
                yield from _of_table(item)
