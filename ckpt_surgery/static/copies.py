"""Keep `# Copied from` comments true: a copy equals its source, or loses the comment, with a note that says why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.providers.copies import COPIES, CopiedFrom
from ckpt_surgery.codemods.repair import DropComment
from ckpt_surgery.codemods.tree.places import Places
from ckpt_surgery.static.results import Note
from ckpt_surgery.static.snapshot import Snapshot


def diverged_copies(before: Snapshot, now: Snapshot, *, follow: bool = False) -> Iterator[tuple[DropComment, Note]]:
    """Yield, for each copy that no longer equals its source, the repair that drops the comment, and a note.

    With `follow`, a copy that did not change keeps its comment.
    """
    changed = {path for path, file in now.files.items() if file.source.text != before.text(path)}
    for path, file in sorted(now.files.items()):
        earlier = iter(before.files[path].facts[COPIES])  # a repair neither adds nor moves any, but some may be gone
        for copy in file.facts[COPIES]:
            key = copy.source, copy.replacements
            old = next(each for each in earlier if (each.source, each.replacements) == key)
            named = re.fullmatch(r"(models\..*?\b(?:modeling|modular)_\w*)\.?(.*)", copy.source)
            position = path.rfind(f"{os.sep}models{os.sep}")
            if named is None or position < 0:
                home, name = "", ""
            else:
                home, name = os.path.join(path[:position], *named[1].split(".")) + ".py", named[2]
            if home not in now.files or changed.isdisjoint((path, home)):
                continue
            if follow and _lines(before.text(path), old.span) == _lines(now.text(path), copy.span):
                continue
            if _is_true(before, path, old, home, name) and not _is_true(now, path, copy, home, name):
                source = SourceText(now.text(path))
                place = Span(copy.line, 0, copy.line + 1, 0)
                owner = Places(source).definition(copy.span)
                gone = f"the comment `# Copied from transformers.{copy.source}` is gone"
                note = Note(path, f"{gone}: the repair made the copy differ from its source", copy.line)
                yield DropComment(path, place, owner, source.of(place).strip()), note


def _is_true(tree: Snapshot, path: str, copy: CopiedFrom, home: str, name: str) -> bool:
    """Tell whether a copy equals its source, `name` in the file `home`, with the comment's replacements made."""
    outer, _, inner = name.partition(".")
    cls = next((cls for cls in tree.files[home].facts.classes if cls.name == outer), None)
    named = cls.forward if cls and inner == "forward" else None if inner else cls
    if named is None:
        return False
    text = _lines(tree.text(home), named.span)
    for pattern in copy.replacements.split(","):
        old, arrow, new = pattern.strip().partition("->")
        new = new.split()[0] if new.split() else ""
        if arrow:
            text = text.replace(old.strip(), new)
            if "all-casing" in pattern:
                text = text.replace(old.lower(), new.lower()).replace(old.upper(), new.upper())
    return _code(text) == _code(_lines(tree.text(path), copy.span))


def _lines(text: str, span: Span) -> str:
    return "\n".join(text.split("\n")[span.line - 1 : span.end_line])


def _code(text: str) -> str:
    """Return the text without layout, comments and decorators."""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith(("@", "#"))]
    return re.sub(r"\s+|,(?=\s*\))", "", "".join(lines))
