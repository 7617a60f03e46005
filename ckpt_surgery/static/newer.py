"""Blank out syntax of a Python newer than the running one, so that the rest can be read."""

from __future__ import annotations

import ast
import re

_DEEP = re.compile(r"(?:[\[({~+-]\s*|not\s+){300}")
"""What would take libcst's parser, and this process with it, to the end of the stack."""
_NOT_AT_END = re.compile(rb"[^\r\n]")
_AT_END = re.compile(rb" (?=\r?\n)")


def as_older(text: str) -> str | None:
    """Blank out type aliases, type parameters and newer f-strings; None where the text is no Python at all.

    Lines, and the bytes of each, stay as many as they were. What has nothing to be made blank comes back as it is.
    """
    if text.startswith("\ufeff") or _DEEP.search(text):  # libcst passes a byte order mark over, `ast` does not
        return None
    import libcst as cst  # only for a file that `ast` does not take
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    try:
        module = cst.parse_module(text)
        spans = MetadataWrapper(module, unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    except Exception:  # whatever is wrong with the text, it stays a file that does not parse
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
            rest = _NOT_AT_END.sub(b" ", code[len(blank) :])
            data[span.start : end] = blank + _AT_END.sub(rb"\\", rest)
    return data.decode()


def syntax_error(source: str | bytes) -> SyntaxError | None:
    """Return why a text is no Python of the running release; None where it is."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error
    return None
