"""What of a file, or of a class, checkpoints what it is given."""

from __future__ import annotations

import ast

from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax, methods_of


def _functions(file: FileSyntax) -> tuple[str, ...]:
    return tuple(sorted(file.helpers.functions))


def _methods(cls: ast.ClassDef, file: FileSyntax) -> tuple[str, ...]:
    if not file.may_checkpoint:
        return ()
    methods = [method for method in methods_of(cls) if file.helpers.may_be_in(file.text(method))]
    return tuple(dict.fromkeys(file.helpers.of_class(methods)))


FUNCTIONS = FileFact[tuple[str, ...]]("checkpointing_functions", _functions, nothing=(), signs=("checkpoint",))
METHODS = ClassFact[tuple[str, ...]]("checkpointing_methods", _methods, nothing=(), signs=())
"""Methods, and attributes that hold a checkpoint function."""
