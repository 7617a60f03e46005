"""Taking out methods that keep late releases of transformers from switching checkpointing layers on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ckpt_surgery.codemods.providers.switches import OLD_SWITCH
from ckpt_surgery.codemods.repair import DropMethod
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree


def old_switches(tree: SourceTree, layers: Collection[ClassRef]) -> Iterator[ClassRef]:
    """The models of transformers with an old switch in the files of these layers and of what runs them."""
    owners = {owner for layer in layers for owner, _ in tree.blocks.callers.get(layer, ())}
    paths = {layer.path for layer in layers} | {owner.path for owner in owners}
    paths |= {base.path for owner in owners for base in tree.bases.lineage(owner)}
    models = (ref for path in sorted(paths.intersection(tree.checked)) for ref in tree.names.classes(path))
    return (ref for ref in models if ref.cls[OLD_SWITCH] and switches_a_model(tree, ref))


def switches_a_model(tree: SourceTree, ref: ClassRef) -> bool:
    """Whether a class is a model of transformers, or a mixin of one."""
    return any(map(tree.bases.is_pretrained, (ref, *tree.bases.heirs(ref))))


def without_switch(tree: SourceTree, ref: ClassRef) -> DropMethod:
    """The class without its old switch."""
    switch = ref.cls[OLD_SWITCH]
    assert switch is not None
    span = switch.span._replace(line=switch.first_line)
    return DropMethod(ref.path, span, tree.places(ref.path).definition(switch.span))
