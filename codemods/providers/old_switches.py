"""The method by which models before transformers 4.35 switched their checkpointing on."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import ClassFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import Span, first_line_of, span_of
from ckpt_surgery.model_patches.release_names import FLAG, INNER_SWITCH

_VALUE = "value"
"""The parameter by which transformers tells the old form."""


class OldSwitch(NamedTuple):
    """A method `_set_gradient_checkpointing(self, module, value=False)`, the form of transformers before 4.35.

    With one, late releases call it for each module, and nothing else: no layer of theirs is switched on.
    """

    span: Span
    first_line: int
    """The line of the first decorator, or of `def` where there is none."""
    only_flags: bool
    """Whether it does nothing but set `gradient_checkpointing` of the module."""
    alone: bool
    """Whether the class holds nothing else."""


def _old_switch(cls: ast.ClassDef, file: FileSyntax) -> OldSwitch | None:
    for function in cls.body:
        if isinstance(function, ast.FunctionDef) and function.name == INNER_SWITCH:
            names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
            if _VALUE in names:
                only_flags = _sets_flags(_without_docstring(function.body))
                return OldSwitch(span_of(function), first_line_of(function), only_flags, alone=len(cls.body) == 1)
    return None


def _without_docstring(body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _sets_flags(body: Sequence[ast.stmt]) -> bool:
    for statement in body:
        match statement:
            case ast.If(body=inner, orelse=orelse):
                if not (_sets_flags(inner) and _sets_flags(orelse)):
                    return False
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(), attr=name)]) if name == FLAG:
                continue
            case ast.Pass():
                continue
            case _:
                return False
    return True


OLD_SWITCH = ClassFact[OldSwitch | None]("old_switch", _old_switch, nothing=None, signs=(INNER_SWITCH,))
