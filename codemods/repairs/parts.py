"""Find the lines of a file that its repairs change, so that libcst parses only those.

libcst needs a fifth of a second for a modeling file. Only the methods and class headers that change are parsed, and
the head of the file for its imports; everything else is copied.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ckpt_surgery.codemods import repair
from ckpt_surgery.codemods.facts.file_facts import FileFacts
from ckpt_surgery.codemods.facts.source_text import SourceText

_HEAD_END = re.compile(r"[\s,)]*:\s*(?:#.*)?")
_BLANK_OR_COMMENT = re.compile(r"\s*(?:#.*)?")


class Part(NamedTuple):
    """Whole lines of a text, from offset `start` to `end`, and what to put around them so that they parse.

    `step` is one level of indentation in the file, if these lines do not show it.
    """

    start: int
    end: int
    before: str = ""
    after: str = ""
    step: str = ""


def by_part(
    text: str, facts: FileFacts, repairs: Collection[repair.SourceRepair]
) -> Mapping[Part, Sequence[repair.SourceRepair]]:
    """Group the repairs of a file by the part of its text that they change. No two parts overlap."""
    parts = _Parts(text, facts)
    grouped: dict[Part, list[repair.SourceRepair]] = defaultdict(list)
    for change in repairs:
        grouped[parts.of(change)].append(change)
    disjoint: dict[Part, list[repair.SourceRepair]] = defaultdict(list)
    outer = Part(0, 0)
    for part in sorted(grouped, key=lambda part: (part.start, -part.end)):
        outer = part if part.start >= outer.end else outer
        disjoint[outer] += grouped[part]
    return disjoint


class _Parts:
    """The parts of one file."""

    def __init__(self, text: str, facts: FileFacts) -> None:
        self._whole = self._head = self._imports = Part(0, len(text))
        self._source = SourceText(text)
        counts = Counter(cls.name for cls in facts.classes)
        self._classes = {cls.name: cls for cls in facts.classes if cls.span.column == 0 and counts[cls.name] == 1}
        first_class = min((cls.first_line for cls in facts.classes), default=0)
        imports = [item.span for item in facts.imports if not item.guard]
        if imports and max(imports).line < first_class and all(cls.span.column == 0 for cls in facts.classes):
            methods = [method for cls in self._classes.values() for method in cls.methods]
            step = self._source.indent(self._source.offset(methods[0].first_line, 0)) if methods else ""
            self._head = self._imports = self._lines(1, first_class - 1, step=step)
            last_import = max((span for span in imports if span.column == 0), default=None)
            if last_import and self._ends_line(last_import.end_line, last_import.end_column, _BLANK_OR_COMMENT):
                self._imports = self._lines(1, last_import.end_line, step=step)

    def of(self, change: repair.SourceRepair) -> Part:
        """Return the part that a repair changes: a class or file head, a method, a class, the imports, or all."""
        if isinstance(change, repair.ImportName):
            return self._imports
        if isinstance(change, repair.DropImports):
            return self._head
        target = change.target.definition if isinstance(change.target, repair.Occurrence) else change.target
        name, _, inner = target.name.partition(".") if target else ("", "", "")
        cls = self._classes.get(name)
        if cls is None or (isinstance(change, repair.DropComment) and not inner):
            return self._whole  # the comment above a class is not in its lines
        methods = [method for method in cls.methods if method.name == inner.partition(".")[0]]
        in_method = isinstance(change, repair.OrderParameters) or isinstance(change.target, repair.Occurrence)
        if in_method and len(methods) == 1:
            before = f"class {name}:{self._source.newline}"  # as if the class held nothing else
            return self._lines(methods[0].first_line, methods[0].end_line, before=before)
        if isinstance(change, repair.MakeLayer) and self._ends_line(
            cls.header.end_line, cls.header.end_column, _HEAD_END
        ):
            return self._lines(cls.first_line, cls.header.end_line, after=f"    pass{self._source.newline}")
        return self._lines(cls.first_line, cls.span.end_line)

    def _ends_line(self, line: int, column: int, rest: re.Pattern[str]) -> bool:
        """Tell whether the rest of a line matches a pattern."""
        start = self._source.offset(line, column)
        return rest.fullmatch(self._source.text, start, self._source.line_end(start)) is not None

    def _lines(self, first: int, last: int, **options: str) -> Part:
        """Return the text from the beginning of one line to the end of another, its newline included."""
        start, end = self._source.offset(first, 0), self._source.line_end(self._source.offset(last, 0))
        newline = self._source.text.find("\n", end)
        return Part(start, len(self._source.text) if newline < 0 else newline + 1, **options)
