"""The repair that drops imported names which only the removed text used (`partial`, mostly)."""

from __future__ import annotations

import re
from collections import Counter

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.repair import DropImports

_LIBRARIES = frozenset({"functools", "torch", "typing", "transformers", "warnings"})
"""What is imported from the package itself stays: other files may take it from here."""
_IMPORTS = re.compile(r"^[ \t]*(?:from\s+\S+\s+)?import\s+(?:\([^)]*\)|[^\n]*)", re.M)


def unused_imports(path: str, facts: FileFacts, before: str, after: str, width: int) -> DropImports | None:
    """What drops the names that `before` used and `after` does not; None where there are none."""
    then, now = _words(before), _words(after)
    top = (item for item in facts.imports if not item.guard and item.module.partition(".")[0] in _LIBRARIES)
    names = dict.fromkeys(item.name for item in top if then[item.name] and not now[item.name])
    return DropImports(path, None, None, tuple(names), width) if names else None


def _words(text: str) -> Counter[str]:
    """How often each word stands in a text outside its import statements."""
    return Counter(re.findall(r"[^\W\d]\w*", _IMPORTS.sub("", text)))
