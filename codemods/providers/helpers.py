"""Find the functions, methods and attributes of a file that checkpoint what they are given."""

from __future__ import annotations

import ast

from ckpt_surgery.codemods.facts.checkpoint_helpers import Places, speaks_of_checkpointing
from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax, methods_of


def _methods(cls: ast.ClassDef, file: FileSyntax) -> dict[str, Places]:
    if not file.may_checkpoint:
        return {}
    methods = [method for method in methods_of(cls) if file.helpers.may_be_in(file.text(method))]
    return dict(file.helpers.of_class(methods))


FUNCTIONS = FileFact[dict[str, Places]](
    "checkpointing_functions",
    lambda file: file.helpers.functions,
    nothing={},
    signs=("checkpoint",),
    worth=speaks_of_checkpointing,
)
"""Functions that checkpoint what they are given, and which arguments."""
METHODS = ClassFact[dict[str, Places]]("checkpointing_methods", _methods, nothing={}, signs=())
"""Methods, and attributes that hold a checkpoint function."""
