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
_LINE = re.compile(rf"^{_NAME}(?![\w.-])[^;#]*")
_CARET = re.compile(r"^[\^~](?!=)")
_METADATA = "METADATA"


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
    """The requirements that a folder states for the file or folder `part` in it.

    What is usual is asked for even where it is not there: it may be there the next time.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in dict.fromkeys([*_READERS, "requirements.txt", *names]):
        if name in _READERS or (name.startswith("requirements") and name.endswith(".txt")):
            text = read(os.fspath(folder / name))
            yield from _READERS.get(name, _of_lines)(text) if text else ()
        elif name.endswith(".dist-info") and _holds(folder / name, part, read):
            text = read(os.fspath(folder / name / _METADATA)) or ""
            yield from _of_lines("\n".join(re.findall("^Requires-Dist:(.*)", text, re.M)))


def _holds(metadata: Path, part: str, read: Callable[[str], str | None]) -> bool:
    """Whether an installed distribution has a file or folder of this name."""
    if metadata.name.partition("-")[0].lower() == part.lower():
        return True
    record = read(os.fspath(metadata / "RECORD")) or ""
    return record.startswith(f"{part}/") or f"\n{part}/" in record


def _of_lines(text: str) -> Iterator[str]:
    """One requirement a line; what stands behind `;` says when it holds, and is left out."""
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match:
            yield re.sub(r"\[[^]]*\]", "", match.group()).translate(_PLAIN).strip()


_PLAIN = str.maketrans("", "", "() ")


def _of_toml(text: str) -> Iterator[str]:
    try:
        document: object = tomllib.loads(text)
    except ValueError:
        return
    yield from _of_table(document)


def _of_table(value: object) -> Iterator[str]:
    """Every requirement in lists, and the versions that Poetry has by name."""
    if isinstance(value, str):
        yield from _of_lines(value)
    elif isinstance(value, list):
        for item in value:
            yield from _of_table(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            version = item.get("version") if isinstance(item, dict) else item
            if key == _NAME and isinstance(version, str):
                yield from _of_lines(_NAME + _poetry(version))
            else:
                yield from _of_table(item)


def _poetry(version: str) -> str:
    """Poetry's way to write versions: `^4.40` and `~4.40` are the oldest, `4.40` is the only one, `*` is any."""
    if version[:1].isdigit():
        return f"=={version}"
    return "" if version == "*" else _CARET.sub(">=", version)


def _of_setup(text: str) -> Iterator[str]:
    """Every string of a setup.py that is a requirement."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _of_lines(node.value)


def _of_configuration(text: str) -> Iterator[str]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except ConfigError:
        return
    for section in parser.sections():
        if section == "options" or section.startswith("options.extras_require"):
            for _, value in parser.items(section):
                yield from _of_lines(value)


_READERS: dict[str, Callable[[str], Iterator[str]]] = {
    "pyproject.toml": _of_toml,
    "setup.py": _of_setup,
    "setup.cfg": _of_configuration,
}
