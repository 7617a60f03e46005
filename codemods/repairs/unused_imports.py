"""The repair that drops imported names which only the removed text used (`partial`, mostly)."""

from __future__ import annotations

import re

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.repair import DropImports

_WORD = re.compile(r"[^\W\d]\w*")
_IMPORTS = re.compile(r"^[ \t]*(?:from\s+\S+\s+)?import\s+(?:\([^)]*\)|[^\n]*)", re.M)


def unused_imports(path: str, facts: FileFacts, before: str, after: str, width: int) -> DropImports | None:
    """What drops the names that `before` used and `after` does not; None where there are none."""
    gone = _words(before) - _words(after)
    top = [item for item in facts.imports if not item.guard and item.module != "__future__"]
    names = dict.fromkeys(item.name for item in top if item.name in gone and not _is_own(path, item.module))
    return DropImports(path, None, None, tuple(names), width) if names else None


def _is_own(path: str, module: str) -> bool:
    """Whether a module is of the file's own package: other files may take from here what is imported from there."""
    return bool(path) and (module.startswith(".") or module.partition(".")[0] in re.split(r"[/\\]", path))


def _words(text: str) -> set[str]:
    """The words of a text outside its import statements."""
    return set(_WORD.findall(_IMPORTS.sub("", text)))
