"""How a class switches its checkpointing by itself, where transformers would not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ckpt_surgery.codemods.facts.file_facts import OwnSwitch
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION, INNER_SWITCH, SWITCH_ON

SWITCHES = frozenset({*SWITCH_ON, INNER_SWITCH})
"""The methods by which transformers switches a model's checkpointing on."""
_OFF = ("False", "None")
_SIGN = re.compile(rf"{FLAG}(?:_func)?\s*(?:=(?!=)|:.*=)|def (?:{'|'.join(sorted({FLAG, *SWITCHES}))})\b")


def may_switch(text: str) -> bool:
    """Whether a method's text is worth reading."""
    return "checkpointing" in text and _SIGN.search(text) is not None


def own_switches(functions: Iterable[ast.FunctionDef]) -> Iterator[OwnSwitch]:
    """What the methods of a class set, and which of them take the place of those of transformers."""
    for function in functions:
        if function.name == FLAG:  # a property
            yield OwnSwitch(f"self.{FLAG}", "")
        if function.name in SWITCHES and not _is_old(function) and not _hands_over(function):
            yield OwnSwitch(f"self.{function.name}", "")
        for node in walk(function):
            match node:
                case (
                    ast.Assign(targets=[ast.Attribute(attr=name) as target], value=value)
                    | ast.AnnAssign(target=ast.Attribute(attr=name) as target, value=ast.expr() as value)
                ) if name in (FLAG, FUNCTION) and dotted(target).startswith("self."):
                    text = ast.unparse(value)
                    if text not in _OFF:
                        yield OwnSwitch(dotted(target), text)


def _is_old(function: ast.FunctionDef) -> bool:
    """The form before transformers 4.35, which transformers knows."""
    return any(parameter.arg == "value" for parameter in function.args.args)


def _hands_over(function: ast.FunctionDef) -> bool:
    """Whether a method calls that of another class or module: `super()`, `self.model`."""
    calls = (node.func for node in walk(function) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Attribute) and called.attr in SWITCHES for called in calls)
