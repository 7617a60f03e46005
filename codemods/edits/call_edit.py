"""The edit that gives one call another argument list."""

from __future__ import annotations

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.edits.layout import Place, render_call
from ckpt_surgery.codemods.facts.file_facts import Span
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.tree.arguments import Piece


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
