"""Read which keywords the GradientCheckpointingLayer of a release clears, in the file that defines it."""

from __future__ import annotations

import ast

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import walk
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


def _cleared(file: FileSyntax) -> tuple[str, ...] | None:
    for node in file.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == LAYER_CLASS:
            return tuple(filter(None, map(_looked_up, walk(node))))
    return None


def _looked_up(node: ast.AST) -> str:
    match node:
        case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In()], comparators=[ast.Name(id="kwargs")]):
            return name
    return ""


CLEARED = FileFact[tuple[str, ...] | None]("cleared", _cleared, nothing=None, signs=(f"class {LAYER_CLASS}",))
"""The keywords that the layer class clears: `"past_key_values" in kwargs`. None where a file does not define it."""
