"""The paths in a checkout of transformers, relative to its top, and searches by path or text."""

from __future__ import annotations

import re
from pathlib import Path

UPSTREAM = "huggingface/transformers"
"""The repository on GitHub."""

MODELS = Path("src/transformers/models")
MODELING_UTILS = Path("src/transformers/modeling_utils.py")
TESTS = Path("tests/models")
TEMPLATE = Path(".github/PULL_REQUEST_TEMPLATE.md")
LINE_LENGTH = 119
"""The longest line that upstream's formatter allows."""

DEPRECATED = "deprecated"
"""The folder among the models that holds the deprecated ones, which are left alone."""

_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def families_of(tree: Path) -> tuple[str, ...]:
    """Return the names of all model folders of a checkout, including those of deprecated models."""
    places = (tree / MODELS, tree / MODELS / DEPRECATED)
    folders = (entry for place in places if place.is_dir() for entry in place.iterdir() if entry.is_dir())
    return tuple(sorted(folder.name for folder in folders if any(folder.glob("*.py")) and folder.name != DEPRECATED))


def files_of(tree: Path, family: str, pattern: str) -> list[Path]:
    """Return the files of a family whose names fit a pattern (`modeling_*.py`, `modular_*.py`), as full paths."""
    folders = (tree / MODELS / family, tree / MODELS / DEPRECATED / family)
    return [file for folder in folders for file in sorted(folder.glob(pattern))]


def classes_of(tree: Path, family: str) -> list[str]:
    """Return the names of all classes in the modeling files of a family."""
    return [name for file in files_of(tree, family, "modeling_*.py") for name in _CLASS.findall(text_of(file))]


def text_of(path: Path) -> str:
    """Read a file for a search, whatever its encoding; empty if there is no such file."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def is_model_file(file: str) -> bool:
    """Tell whether a path relative to the top is Python source of a model."""
    return Path(file).is_relative_to(MODELS) and file.endswith(".py")
