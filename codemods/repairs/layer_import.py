"""The repair that imports the layer class into a file."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.codemods.facts.file_facts import Import
from ckpt_surgery.codemods.repair import ImportName
from ckpt_surgery.codemods.tree.layer_sources import LAYERS
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


def layer_import(tree: SourceTree, path: str) -> tuple[ImportName, ...]:
    """What imports the layer class into a file; nothing where it is imported already."""
    facts = tree.names.facts(path)
    top = [item for item in (facts.imports if facts else ()) if not item.guard]
    if facts is None or any(item.name == LAYER_CLASS for item in top):
        return ()
    first = min((cls.first_line for cls in facts.classes), default=len(tree.text(path)))
    early = [item for item in top if item.span.line < first]  # an import below a class comes too late for it
    return (ImportName(path, None, None, _module(tree, path, early), LAYER_CLASS, tree.width),)


def _module(tree: SourceTree, path: str, imports: Sequence[Import]) -> str:
    """`...modeling_layers` where the file reaches transformers' core by dots, the absolute name elsewhere."""
    dots = [tree.layers.core_dots(path, item) for item in imports]
    return (max(dots, key=len, default="") or "transformers.") + LAYERS
