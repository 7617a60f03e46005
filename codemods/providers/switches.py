"""Find how a class switches its checkpointing itself: in the form before transformers 4.35, or in its own way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import ClassFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax, methods_of, own_statements
from ckpt_surgery.codemods.facts.syntax import Span, assigned_names, dotted, first_line_of, span_of, walk
from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION, INNER_SWITCH, SWITCH_ON

SWITCHES = frozenset({*SWITCH_ON, INNER_SWITCH})
"""The methods by which transformers switches a model's checkpointing on."""
_OFF_VALUES = ("False", "None")
_OWN_SWITCH = re.compile(rf"{FLAG}(?:_func)?\s*(?:=(?!=)|:.*=)|def (?:{'|'.join(sorted({FLAG, *SWITCHES}))})\b")


class OldSwitch(NamedTuple):
    """A method `_set_gradient_checkpointing(self, module, value=False)`, the form of transformers before 4.35.

    Late releases then only call it for each module, so that none of their layers is switched on.
    """

    span: Span
    first_line: int
    """The line of the first decorator, or of `def` if there is none."""
    only_flags: bool
    """Whether it only sets the module's `gradient_checkpointing`."""


def _is_old(function: ast.FunctionDef) -> bool:
    """Tell whether a method has the parameter by which transformers recognises the old form."""
    return any(parameter.arg == "value" for parameter in function.args.args)


def _sets_flags(body: Sequence[ast.stmt]) -> bool:
    for statement in body:
        match statement:
            case ast.If(body=inner, orelse=orelse):
                if not (_sets_flags(inner) and _sets_flags(orelse)):
                    return False
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(), attr=name)]) if name == FLAG:
                continue
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case _:
                return False
    return True


OLD_SWITCH = ClassFact[OldSwitch | None](
    "old_switch",
    lambda cls, file: next(
        (
            OldSwitch(span_of(node), first_line_of(node), _sets_flags(node.body))
            for node in cls.body
            if isinstance(node, ast.FunctionDef) and node.name == INNER_SWITCH and _is_old(node)
        ),
        None,
    ),
    nothing=None,
    signs=(INNER_SWITCH,),
)


def _switches(cls: ast.ClassDef, file: FileSyntax) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a class sets, with their values, and methods that replace those of transformers."""
    for statement in own_statements(cls):
        yield from ((f"self.{name}", "") for name in assigned_names(statement) if name in SWITCHES)
    for function in methods_of(cls):
        text = file.text(function)
        if "checkpointing" in text and _OWN_SWITCH.search(text):
            if function.name == FLAG:  # a property
                yield f"self.{FLAG}", ""
            callees = [node.func for node in walk(function) if isinstance(node, ast.Call)]
            delegates = any(isinstance(each, ast.Attribute) and each.attr in SWITCHES for each in callees)
            if function.name in SWITCHES and not (_is_old(function) or delegates):
                yield f"self.{function.name}", ""
            for node in walk(function):
                match node:
                    case (
                        ast.Assign(targets=[ast.Attribute(attr=name) as target], value=value)
                        | ast.AnnAssign(target=ast.Attribute(attr=name) as target, value=ast.expr() as value)
                    ) if name in (FLAG, FUNCTION) and dotted(target).startswith("self."):
                        text = ast.unparse(value)
                        if text not in _OFF_VALUES:
                            yield dotted(target), text
    for owner, name, _ in file.set_attributes:
        if owner == cls.name and name in SWITCHES:
            yield f"self.{name}", ""


OWN_SWITCHES = ClassFact[tuple[tuple[str, str], ...]](
    "own_switches", lambda cls, file: tuple(_switches(cls, file)), nothing=(), signs=("checkpointing",)
)
"""How a class switches its checkpointing itself: attributes with their values, methods with ""."""
