"""Find code that checkpoints blocks of other objects, by the attributes of those that it reads.

`for layer in model.layers: x = checkpoint(layer, x)` checkpoints the blocks of a model outside its class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.checkpoint_helpers import CHECKPOINT_ATTRIBUTES, speaks_of_checkpointing
from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import dotted, walk

_SETTINGS = re.compile(r"(?:^|[._])(?:config|cfg|args|options)$")


def _read(file: FileSyntax) -> Iterator[tuple[str, frozenset[str]]]:
    names = {*CHECKPOINT_ATTRIBUTES, "checkpoint_sequential", "checkpoint_wrapper", *file.checkpoint_names}
    calls = [f"{name}(" for name in names if f"{name}(" in file.source]
    for node in file.tree.body if calls else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and any(call in file.text(node) for call in calls):
            nodes = [inner for inner in walk(node) if isinstance(inner, ast.Attribute)]
            owners = ((dotted(inner.value), inner.attr) for inner in nodes if isinstance(inner.ctx, ast.Load))
            attributes = frozenset(
                name for owner, name in owners if owner not in ("", "self") and not _SETTINGS.search(owner)
            )
            if attributes:
                yield node.name, attributes


FOREIGN_STACKS = FileFact[tuple[tuple[str, frozenset[str]], ...]](
    "foreign_stacks", lambda file: tuple(_read(file)), nothing=(), signs=("checkpoint",), worth=speaks_of_checkpointing
)
"""The functions and classes that checkpoint, each with the attributes that it reads of objects other than `self`."""
