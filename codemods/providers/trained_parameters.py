"""Find the attributes of a class that are parameters and that nothing in the class freezes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.fact import ClassFact
from ckpt_surgery.codemods.facts.syntax import last_name, walk


def _trained(cls: ast.ClassDef) -> Iterator[str]:
    for node in walk(cls):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                value=ast.Call(func=func, args=[_], keywords=[]),
            ) if last_name(func) == "Parameter":
                yield name


TRAINED_PARAMETERS = ClassFact[tuple[str, ...]](
    "trained_parameters",
    lambda cls, file: () if "requires_grad" in file.text(cls) else tuple(_trained(cls)),
    nothing=(),
    signs=("Parameter(",),
)
