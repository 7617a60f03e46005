"""`# Copied from` comments: a copy stays equal to its source, or loses the comment, with a note that says why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.providers.copies import COPIES, CopiedFrom
from ckpt_surgery.codemods.repair import DropComment
from ckpt_surgery.codemods.tree.places import Places
from ckpt_surgery.static.discover import SourceFile
from ckpt_surgery.static.reading import ParsedFile
from ckpt_surgery.static.results import Note
from ckpt_surgery.static.snapshot import Snapshot


def diverged_copies(
    snapshot: Snapshot,
    original: Mapping[str, SourceFile],
    parsed_before: Mapping[str, ParsedFile],
    *,
    follow: bool = False,
) -> Iterator[tuple[DropComment, Note]]:
    """For every copy that was equal to its source and is not any more: the repair that drops the comment, and a note.

    With `follow`, a copy that did not change keeps its comment.
    """
    changed = {path for path, source in snapshot.sources.items() if source.text != original[path].text}
    for path in sorted(snapshot.parsed):
        copies = snapshot.parsed[path].facts[COPIES]
        for copy, then in _pairs(copies, parsed_before[path].facts[COPIES]):
            home, name = _home(path, copy.source)
            if home not in snapshot.parsed or not ({path, home} & changed):
                continue
            span, was = _named(snapshot.parsed[home].facts, name), _named(parsed_before[home].facts, name)
            if span is None or was is None:
                continue
            if follow and _lines(original[path].text, then.span) == _lines(snapshot.text(path), copy.span):
                continue
            equal_before = _equal(original[path].text, then, original[home].text, was)
            if equal_before and not _equal(snapshot.text(path), copy, snapshot.text(home), span):
                source = SourceText(snapshot.text(path))
                place = Span(copy.line, 0, copy.line + 1, 0)
                owner = Places(source, snapshot.parsed[path].facts).definition(copy.span)
                gone = f"the comment `# Copied from transformers.{copy.source}` is gone"
                note = Note(path, f"{gone}: the repair made the copy differ from its source", copy.line)
                yield DropComment(path, place, owner, source.of(place).strip()), note


def _pairs(copies: Sequence[CopiedFrom], before: Sequence[CopiedFrom]) -> Iterator[tuple[CopiedFrom, CopiedFrom]]:
    """The same comments after and before: a repair neither adds nor moves any, but some go with what they stand on."""
    left = iter(before)
    for copy in copies:
        yield copy, next(then for then in left if (then.source, then.replacements) == (copy.source, copy.replacements))


def _home(path: str, source: str) -> tuple[str, str]:
    """The file that `models.bert.modeling_bert.BertLayer.forward` names, and the object in it."""
    parts = source.split(".")
    position = path.rfind(f"{os.sep}models{os.sep}")
    module = next((i for i, part in enumerate(parts) if part.startswith(("modeling_", "modular_"))), None)
    if position < 0 or module is None or parts[0] != "models":
        return "", ""
    return os.path.join(path[:position], *parts[: module + 1]) + ".py", ".".join(parts[module + 1 :])


def _named(facts: FileFacts, name: str) -> Span | None:
    outer, _, inner = name.partition(".")
    for cls in facts.classes:
        if cls.name == outer:
            if not inner:
                return cls.span
            return cls.forward.span if inner == "forward" and cls.forward else None
    return None


def _equal(copy_text: str, copy: CopiedFrom, source_text: str, span: Span) -> bool:
    """Whether the copy is its source with the comment's replacements made."""
    text = _lines(source_text, span)
    for pattern in copy.replacements.split(","):
        old, arrow, new = pattern.strip().partition("->")
        new = new.split()[0] if new.split() else ""
        if arrow:
            text = re.sub(re.escape(old.strip()), new, text)
            if "all-casing" in pattern:
                text = text.replace(old.lower(), new.lower()).replace(old.upper(), new.upper())
    return _code(text) == _code(_lines(copy_text, copy.span))


def _lines(text: str, span: Span) -> str:
    return "\n".join(_split(text)[span.line - 1 : span.end_line])


@lru_cache(maxsize=64)
def _split(text: str) -> list[str]:
    return text.split("\n")


def _code(text: str) -> str:
    """The text without what layout alone decides."""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith(("@", "#"))]
    return re.sub(r"\s+|,(?=\s*\))", "", "".join(lines))
