"""The edit that gives one call another argument list."""

from __future__ import annotations

from codemods.arguments import Piece
from codemods.facts import Span
from codemods.finding import Edit
from codemods.layout import Place, render_call
from codemods.rule import Context


def call_edit(context: Context, path: str, call: Span, pieces: tuple[Piece, ...]) -> Edit:
    """Replace the text of the call at a span by the same call with the arguments that `pieces` say."""
    source = context.source(path)
    start, end = source.range(call)
    place = Place(
        indent=source.indent(start),
        before=start - source.line_start(start),
        after=source.line_end(end) - end,
        width=context.width,
        newline=source.newline,
    )
    return Edit(path, start, end, render_call(source.text[start:end], pieces, place))
