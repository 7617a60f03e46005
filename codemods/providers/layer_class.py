"""Read which keywords the GradientCheckpointingLayer of a release clears, in the file that defines it."""

from __future__ import annotations

import ast
import re

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.model_patches.release_names import LAYER_CLASS

_LOOKED_UP = re.compile(r"[\"'](\w+)[\"'] in kwargs\b")


CLEARED = FileFact[tuple[str, ...] | None](
    "cleared",
    lambda file: next(
        (
            tuple(_LOOKED_UP.findall(file.text(node)))
            for node in file.tree.body
            if isinstance(node, ast.ClassDef) and node.name == LAYER_CLASS
        ),
        None,
    ),
    nothing=None,
    signs=(f"class {LAYER_CLASS}",),
)
"""The keywords that the layer class clears: `"past_key_values" in kwargs`. None where a file does not define it."""
