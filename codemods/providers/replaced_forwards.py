"""Classes that get another forward, and what decorates the one that they have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax, methods_of, own_statements
from ckpt_surgery.codemods.facts.syntax import assigned_names, called, dotted


def _replaced(file: FileSyntax) -> Iterator[str]:
    for owner, name, statement in file.set_attributes:
        if owner and name == "forward" and f"{owner}.forward" not in ast.unparse(statement.value):
            yield owner
    classes = (statement for statement, _ in file.statements if isinstance(statement, ast.ClassDef))
    for cls in classes:
        if any("forward" in assigned_names(statement) for statement in own_statements(cls)):
            yield cls.name


def _decorators(cls: ast.ClassDef, file: FileSyntax) -> tuple[str, ...]:
    forwards = (method for method in methods_of(cls) if method.name in ("forward", "__call__"))
    return tuple(name for method in forwards for node in method.decorator_list if (name := dotted(called(node))))


REPLACED = FileFact[tuple[str, ...]](
    "replaced_forwards", lambda file: tuple(_replaced(file)), nothing=(), signs=("forward = ", "forward=")
)
"""Classes whose forward is assigned: `FooAttention.forward = new_forward`, or `forward = Bar.forward` inside."""
DECORATORS = ClassFact[tuple[str, ...]]("decorators", _decorators, nothing=(), signs=("@",))
"""What decorates the forward of a class, by name, called or as it is."""
