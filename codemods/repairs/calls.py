"""Build the repairs of single places: a call's arguments, a name or constant, the import of the layer class."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.repair import ImportName, NewArgument, PassArguments, ReplaceName
from ckpt_surgery.codemods.tree.layer_releases import LAYERS_MODULE
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


def call_repair(tree: SourceTree, path: str, call: Span, arguments: Sequence[NewArgument]) -> PassArguments:
    """Return the repair that gives the call at a span these arguments."""
    return PassArguments(path, call, tree.places(path).call(call), tuple(arguments), tree.width)


def name_repair(tree: SourceTree, path: str, name: Span, new: str) -> ReplaceName:
    """Return the repair that replaces the name or constant at a span."""
    return ReplaceName(path, name, tree.places(path).name(name), new)


def layer_import(tree: SourceTree, path: str) -> tuple[ImportName, ...]:
    """Return the repair that imports the layer class into a file; none if the file imports it already.

    The import is relative (`...modeling_layers`) if that is how the file imports transformers' core, else absolute.
    """
    facts = tree.names.facts(path)
    top = [item for item in (facts.imports if facts else ()) if not item.guard]
    if facts is None or any(item.name == LAYER_CLASS for item in top):
        return ()
    first = min((cls.first_line for cls in facts.classes), default=len(tree.text(path)))
    early = [item for item in top if item.span.line < first]  # an import below a class comes too late for it
    core = max((tree.layers.core_dots(path, item) for item in early), key=len, default="") or "transformers."
    return (ImportName(path, None, None, core + LAYERS_MODULE, LAYER_CLASS, tree.width),)
