"""Drop imports that only removed code used (`partial`, mostly)."""

from __future__ import annotations

import re
from collections import Counter

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.repair import DropImports

_WORD = re.compile(r"[^\W\d]\w*")
_IMPORTS = re.compile(r"^[ \t]*(?:from\s+\S+\s+)?import\s+(?:\([^)]*\)|[^\n]*)", re.M)


def unused_imports(path: str, facts: FileFacts, before: str, after: str, width: int) -> DropImports | None:
    """Return the repair that drops the imports that `before` used and `after` does not; None if there are none."""
    lines = set(after.split("\n"))
    removed_words = set(_WORD.findall("\n".join(line for line in before.split("\n") if line not in lines)))
    items = [item for item in facts.imports if not item.guard and item.module != "__future__"]
    items = [item for item in items if item.name in removed_words]
    # a name that is called or subscripted is in use: no import statement looks like `nn.Linear(...)`
    items = [item for item in items if not re.search(rf"\b{item.name}(?:\.\w+)*[(\[]", after)]
    if not items:
        return None
    then, now = _words(before), _words(after)
    # other files may import through this one what it imports from its own package
    packages = re.split(r"[/\\]", path)
    own = {item for item in items if path and item.module.partition(".")[0] in ("", *packages)}
    names = dict.fromkeys(item.name for item in items if then[item.name] and not now[item.name] and item not in own)
    return DropImports(path, None, None, tuple(names), width) if names else None


def _words(text: str) -> Counter[str]:
    """Count each word of a text outside its import statements."""
    return Counter(_WORD.findall(_IMPORTS.sub("", text)))
