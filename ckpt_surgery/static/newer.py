"""Blank out syntax of a Python newer than the running one, so that the rest can be read."""

from __future__ import annotations

import ast
import re

_DEEP = re.compile(r"(?:[\[({~+-]\s*|not\s+){300}")
"""Nesting so deep that libcst's parser overflows the stack, which ends this process."""
_NOT_NEWLINE = re.compile(rb"[^\r\n]")
_LAST_SPACE = re.compile(rb" (?=\r?\n)")


def as_older(text: str) -> str | None:
    """Blank out type aliases, type parameters and newer f-strings; None if the text is not Python at all.

    The number of lines, and of bytes in each, stays the same. A text with nothing to blank out comes back as it is.
    """
    if text.startswith("\ufeff") or _DEEP.search(text):  # libcst skips a byte order mark, `ast` does not
        return None
    import libcst as cst  # only for a file that `ast` refuses
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    try:
        module = cst.parse_module(text)
        spans = MetadataWrapper(module, unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    except Exception:  # whatever is wrong, the file is reported as one that does not parse
        return None
    data, end = bytearray(text.encode()), 0
    for node, span in sorted(spans.items(), key=lambda item: (item[1].start, -item[1].length)):
        code = bytes(data[span.start : span.start + span.length])
        match node:
            # `except E, e:`, which Python 3.14 reads as two classes, names the error
            case cst.ExceptHandler(type=cst.Tuple(lpar=(), elements=[_, cst.Element(value=cst.Name(value=name))])) if (
                name[:1].islower()
            ):
                return None
            case cst.TypeAlias():
                blank = b"pass"
            case cst.TypeParameters():
                blank = b""
            case cst.FormattedString() if syntax_error(b"(" + code + b")"):
                blank = b"''"
            case _:
                continue
        if span.start >= end:
            end = span.start + span.length
            rest = _NOT_NEWLINE.sub(b" ", code[len(blank) :])
            data[span.start : end] = blank + _LAST_SPACE.sub(rb"\\", rest)
    return data.decode()


def syntax_error(source: str | bytes) -> SyntaxError | None:
    """Return why a text is not Python of the running release; None if it is."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error
    return None
