"""One transformer, run on a text."""

from __future__ import annotations

import ast

import libcst as cst

from ckpt_surgery.codemods.edits.paths import ModuleTransformer


def transform(transformer: ModuleTransformer, text: str) -> str:
    """Apply the transformer; the result has to parse."""
    after = transformer.transform_module(cst.parse_module(text)).code
    ast.parse(after)
    return after
