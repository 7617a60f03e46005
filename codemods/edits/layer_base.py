"""A class becomes a GradientCheckpointingLayer."""

from __future__ import annotations

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import TargetedTransformer, squeezed
from ckpt_surgery.codemods.tree.classes import MODULES
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


class LayerBase(TargetedTransformer):
    """Puts the layer in the place of `nn.Module` among a class's bases, or in front of them."""

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Not entered."""
        return False

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """The class with its new bases."""
        layer = cst.Name(LAYER_CLASS)
        bases = list(updated_node.bases)
        plain = next((at for at, base in enumerate(bases) if squeezed(base.value) in MODULES), None)
        if plain is not None:
            bases[plain] = bases[plain].with_changes(value=layer)
            return updated_node.with_changes(bases=bases)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if bases else cst.MaybeSentinel.DEFAULT
        return updated_node.with_changes(bases=[cst.Arg(layer, comma=comma), *bases])
