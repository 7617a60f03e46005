"""Which lines of a file its repairs are made in.

libcst needs a fifth of a second for a modeling file. Only the top-level classes that are changed are parsed, and the
head of the file where its imports are; all else is passed through.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.repair import DropComment, DropImports, ImportName, Occurrence, SourceRepair


class Part(NamedTuple):
    """Whole lines of a text, as offsets from `start` to `end`."""

    start: int
    end: int


def by_part(text: str, facts: FileFacts, repairs: Collection[SourceRepair]) -> Mapping[Part, Sequence[SourceRepair]]:
    """The repairs of a file by the part of its text that they are made in. No two parts overlap."""
    parts = _Parts(text, facts)
    grouped: dict[Part, list[SourceRepair]] = defaultdict(list)
    for repair in repairs:
        grouped[parts.of(repair)].append(repair)
    return {parts.whole: list(repairs)} if parts.whole in grouped else dict(sorted(grouped.items()))


class _Parts:
    """The parts of one file."""

    def __init__(self, text: str, facts: FileFacts) -> None:
        self.whole = Part(0, len(text))
        self._source = SourceText(text)
        named = Counter(cls.name for cls in facts.classes)
        self._classes = {
            cls.name: self._lines(cls.first_line, cls.span.end_line)
            for cls in facts.classes
            if cls.span.column == 0 and named[cls.name] == 1
        }
        first = min((cls.first_line for cls in facts.classes), default=0)
        imports = [item for item in facts.imports if not item.guard]
        early = [item for item in imports if item.span.line < first]
        plain = bool(early) and early == imports and all(cls.span.column == 0 for cls in facts.classes)
        self._head = self._lines(1, first - 1) if plain else self.whole

    def of(self, repair: SourceRepair) -> Part:
        """The class, the head of the file, or all of it."""
        if isinstance(repair, ImportName | DropImports):
            return self._head
        target = repair.target.definition if isinstance(repair.target, Occurrence) else repair.target
        if target is None or (isinstance(repair, DropComment) and "." not in target.name):
            return self.whole  # the comment above a class is not in its lines
        return self._classes.get(target.name.partition(".")[0], self.whole)

    def _lines(self, first: int, last: int) -> Part:
        """From the beginning of one line to the end of another, its newline included."""
        start, end = self._source.offset(first, 0), self._source.line_end(self._source.offset(last, 0))
        newline = self._source.text.find("\n", end)
        return Part(start, self.whole.end if newline < 0 else newline + 1)
