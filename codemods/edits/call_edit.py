"""The edit that gives one call another argument list."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.codemods.edits.layout import Place, render_call
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.tree.arguments import NewArgument
from ckpt_surgery.codemods.tree.source_tree import SourceTree


def call_edit(tree: SourceTree, path: str, call: Span, arguments: Sequence[NewArgument]) -> Edit:
    """Replace the text of the call at a span by the same call with these arguments."""
    source = tree.source(path)
    start, end = source.range(call)
    place = Place(
        indent=source.indent(start),
        before=start - source.line_start(start),
        after=source.line_end(end) - end,
        width=tree.width,
        newline=source.newline,
    )
    return Edit(path, start, end, render_call(source.text[start:end], arguments, place))
