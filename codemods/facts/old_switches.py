"""The method by which models before transformers 4.35 switched their checkpointing on."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ckpt_surgery.codemods.facts.file_facts import OldSwitch
from ckpt_surgery.codemods.facts.syntax import span_of
from ckpt_surgery.model_patches.release_names import FLAG, INNER_SWITCH

_VALUE = "value"
"""The parameter by which transformers tells the old form."""


def old_switch(node: ast.ClassDef) -> OldSwitch | None:
    """That of a class, where it has one."""
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == INNER_SWITCH:
            names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
            if _VALUE in names:
                line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
                only_flags = _sets_flags(_without_docstring(function.body))
                return OldSwitch(span_of(function), line, only_flags, alone=len(node.body) == 1)
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
