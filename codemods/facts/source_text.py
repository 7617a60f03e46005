"""Translate positions of `ast` into offsets of a file's text, and find lines and indentation there."""

from __future__ import annotations

import re
from bisect import bisect_right

from ckpt_surgery.codemods.facts.syntax import Span

_LINE_END = re.compile(r"\r\n?|\n")


class SourceText:
    """Offsets into `text`: `ast` counts UTF-8 bytes from the start of a line, Python's strings count characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def offset(self, line: int, column: int) -> int:
        """Return the character offset of a line (from 1) and a byte column (from 0)."""
        start = self._starts[line - 1]
        if column == 0:
            return start
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        content = self.text[start:end]
        if content.isascii():
            return start + column
        return start + len(content.encode()[:column].decode(errors="ignore"))

    def range(self, span: Span) -> tuple[int, int]:
        """Return the start and end offsets of a span."""
        return self.offset(span.line, span.column), self.offset(span.end_line, span.end_column)

    def of(self, span: Span) -> str:
        """Return the text of a span."""
        start, end = self.range(span)
        return self.text[start:end]

    def line_start(self, offset: int) -> int:
        """Return the offset at which the line of an offset begins."""
        return self._starts[bisect_right(self._starts, offset) - 1]

    def line_end(self, offset: int) -> int:
        """Return the offset at which the line of an offset ends, without its newline."""
        end = self.text.find("\n", offset)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > offset and self.text[end - 1] == "\r" else end

    def indent(self, offset: int) -> str:
        """Return the white space that the line of an offset begins with."""
        start = self.line_start(offset)
        line = self.text[start : self.line_end(offset)]
        return line[: len(line) - len(line.lstrip())]
