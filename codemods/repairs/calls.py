"""The repair that gives one call another argument list."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.repair import NewArgument, PassArguments, ReplaceName
from ckpt_surgery.codemods.tree.source_tree import SourceTree


def call_repair(tree: SourceTree, path: str, call: Span, arguments: Sequence[NewArgument]) -> PassArguments:
    """The call at a span with these arguments."""
    return PassArguments(path, call, tree.places(path).call(call), tuple(arguments), tree.width)


def name_repair(tree: SourceTree, path: str, name: Span, new: str) -> ReplaceName:
    """Another name, or constant, in the place of the one at a span."""
    return ReplaceName(path, name, tree.places(path).name(name), new)
