"""Read which keywords GradientCheckpointingLayer clears before it checkpoints, in the file that defines it."""

from __future__ import annotations

import ast
import re

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.model_patches.release_names import LAYER_CLASS

_KEYWORD_TEST = re.compile(r"[\"'](\w+)[\"'] in kwargs\b")


CLEARED_HERE = FileFact[tuple[str, ...] | None](
    "cleared",
    lambda file: next(
        (
            tuple(_KEYWORD_TEST.findall(file.text(node)))
            for node in file.tree.body
            if isinstance(node, ast.ClassDef) and node.name == LAYER_CLASS
        ),
        None,
    ),
    nothing=None,
    signs=(f"class {LAYER_CLASS}",),
)
"""The keywords that the layer class tests for, as in `"past_key_values" in kwargs`; None in a file without it."""
