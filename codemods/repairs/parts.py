"""Which lines of a file its repairs are made in.

libcst needs a fifth of a second for a modeling file. Only the methods and the heads of classes that are changed are
parsed, and the head of the file where its imports are; all else is passed through.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ckpt_surgery.codemods.facts.file_facts import Class, FileFacts, Import
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.repair import (
    DropComment,
    DropImports,
    ImportName,
    KeepElseBranch,
    KeepElseExpression,
    MakeLayer,
    Occurrence,
    OrderParameters,
    PassArguments,
    ReplaceName,
    SourceRepair,
)

_HEAD_END = re.compile(r"[\s,)]*:\s*(?:#.*)?")


class Part(NamedTuple):
    """Whole lines of a text, as offsets from `start` to `end`, and what they are parsed between.

    `step` is the indentation of one level of the file where these lines do not show it.
    """

    start: int
    end: int
    before: str = ""
    after: str = ""
    step: str = ""


def by_part(text: str, facts: FileFacts, repairs: Collection[SourceRepair]) -> Mapping[Part, Sequence[SourceRepair]]:
    """The repairs of a file by the part of its text that they are made in. No two parts overlap."""
    parts = _Parts(text, facts)
    grouped: dict[Part, list[SourceRepair]] = defaultdict(list)
    for repair in repairs:
        grouped[parts.of(repair)].append(repair)
    disjoint: dict[Part, list[SourceRepair]] = {}
    for part in sorted(grouped, key=lambda part: (part.start, -part.end)):
        outer = next(reversed(disjoint), None)
        around = outer is not None and part.start < outer.end
        disjoint.setdefault(outer if around and outer else part, []).extend(grouped[part])
    return disjoint


class _Parts:
    """The parts of one file."""

    def __init__(self, text: str, facts: FileFacts) -> None:
        self.whole = Part(0, len(text))
        self._source = SourceText(text)
        named = Counter(cls.name for cls in facts.classes)
        alone = (cls for cls in facts.classes if cls.span.column == 0 and named[cls.name] == 1)
        self._classes = {cls.name: cls for cls in alone}
        first = min((cls.first_line for cls in facts.classes), default=0)
        imports = [item for item in facts.imports if not item.guard]
        early = [item for item in imports if item.span.line < first]
        plain = bool(early) and early == imports and all(cls.span.column == 0 for cls in facts.classes)
        self._head = self._lines(1, first - 1)._replace(step=self._step()) if plain else self.whole
        self._imports = self._imports_of(early) if plain else self.whole

    def of(self, repair: SourceRepair) -> Part:
        """The head of a class, a method, the class, the imports or the head of the file, or all of it."""
        if isinstance(repair, ImportName):
            return self._imports
        if isinstance(repair, DropImports):
            return self._head
        target = repair.target.definition if isinstance(repair.target, Occurrence) else repair.target
        name, _, inner = target.name.partition(".") if target else ("", "", "")
        cls = self._classes.get(name)
        if cls is None or (isinstance(repair, DropComment) and not inner):
            return self.whole  # the comment above a class is not in its lines
        if isinstance(repair, MakeLayer):
            return self._head_of(cls)
        if isinstance(repair, KeepElseBranch | KeepElseExpression | PassArguments | OrderParameters | ReplaceName):
            return self._method(cls, inner.partition(".")[0])
        return self._lines(cls.first_line, cls.span.end_line)

    def _imports_of(self, early: Sequence[Import]) -> Part:
        """The head of the file up to its last import; all of the head, where more stands on that line."""
        last = max((item.span for item in early if item.span.column == 0), default=None)
        if last is None:
            return self._head
        end = self._source.offset(last.end_line, last.end_column)
        rest = self._source.text[end : self._source.line_end(end)].strip()
        if rest and not rest.startswith("#"):
            return self._head
        return self._lines(1, last.end_line)._replace(step=self._head.step)

    def _step(self) -> str:
        """The indentation of the first method."""
        method = next((method for cls in self._classes.values() for method in cls.methods), None)
        return self._source.indent(self._source.offset(method.first_line, 0)) if method else ""

    def _head_of(self, cls: Class) -> Part:
        """`class Name(...):` with its decorators; the class, where more stands on the line."""
        end = self._source.offset(cls.header.end_line, cls.header.end_column)
        if not _HEAD_END.fullmatch(self._source.text, end, self._source.line_end(end)):
            return self._lines(cls.first_line, cls.span.end_line)
        return self._lines(cls.first_line, cls.header.end_line)._replace(after=f"    pass{self._source.newline}")

    def _method(self, cls: Class, name: str) -> Part:
        """A method, as if its class held nothing else; the class, where that is not all there is of that name."""
        methods = [method for method in cls.methods if method.name == name]
        if len(methods) != 1:
            return self._lines(cls.first_line, cls.span.end_line)
        (method,) = methods
        before = f"class {cls.name}:{self._source.newline}"
        return self._lines(method.first_line, method.end_line)._replace(before=before)

    def _lines(self, first: int, last: int) -> Part:
        """From the beginning of one line to the end of another, its newline included."""
        start, end = self._source.offset(first, 0), self._source.line_end(self._source.offset(last, 0))
        newline = self._source.text.find("\n", end)
        return Part(start, self.whole.end if newline < 0 else newline + 1)
