"""Find reentrant calls of torch's checkpoint function, and options that let a recompute draw other random numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ckpt_surgery.codemods.facts.checkpoint_helpers import speaks_of_checkpointing
from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import Argument, Span, arguments_of, assigned_names, dotted, span_of, walk

_PRESERVE = "preserve_rng_state"
_BUDGET = "activation_memory_budget"
_DROPOUT = re.compile(r"[\w.]*dropout\w*(?:: float)?\s*[=(]\s*(?:p\s*=\s*)?0?\.\d*[1-9]\d*", re.I)
"""A probability above 0: `nn.Dropout(0.1)`, `lora_dropout: float = 0.05`."""


class Unkept(NamedTuple):
    """`preserve_rng_state=False` in a call or in a dict, or an `activation_memory_budget` below 1 of torch.compile."""

    scope: str
    span: Span
    option: str
    """The option and its value, as text."""
    is_budget: bool
    dropout: str
    """The text by which the file sets a dropout above 0; empty if it sets none."""


def _reentrant(file: FileSyntax) -> Iterator[tuple[Span, tuple[Argument, ...]]]:
    own = file.torch_checkpoint_names
    for node in walk(file.tree) if file.mentions(*(f"{name}(" for name in own)) else ():
        if isinstance(node, ast.Call) and dotted(node.func) in own:
            arguments = arguments_of(node)
            modes = [argument.text for argument in arguments if argument.name in ("use_reentrant", "**")]
            if modes in ([], ["True"]):
                yield span_of(node), arguments


def _unkept(file: FileSyntax) -> Iterator[Unkept]:
    dropout = _DROPOUT.search(file.source)
    values = {
        name: statement.value
        for statement, _ in file.statements
        if isinstance(statement, ast.Assign)
        for name in assigned_names(statement)
    }
    for statement in file.tree.body:
        scope = statement.name if isinstance(statement, ast.ClassDef | ast.FunctionDef) else ""
        for node in walk(statement):
            pairs: list[tuple[object, ast.expr]] = []
            if isinstance(node, ast.keyword):
                pairs = [(node.arg, node.value)]
            elif isinstance(node, ast.Dict):
                keys = (key.value if isinstance(key, ast.Constant) else None for key in node.keys)
                pairs = list(zip(keys, node.values, strict=True))
            elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
                pairs = [(target.attr, node.value)]
            for name, given in pairs:
                value = values.get(given.id, given) if isinstance(given, ast.Name) else given
                constant = value.value if isinstance(value, ast.Constant) else None
                is_budget = name == _BUDGET and isinstance(constant, float) and constant < 1
                if is_budget or (name == _PRESERVE and constant is False):
                    text = f"{name}={ast.unparse(value)}"
                    yield Unkept(scope, span_of(given), text, is_budget, dropout.group() if dropout else "")


REENTRANT = FileFact[Mapping[Span, tuple[Argument, ...]]](
    "reentrant", lambda file: dict(_reentrant(file)), nothing={}, signs=("checkpoint(",), worth=speaks_of_checkpointing
)
"""The calls of torch's checkpoint function with `use_reentrant=True` or without the option, with their arguments."""
UNKEPT = FileFact[tuple[Unkept, ...]](
    "random_state", lambda file: tuple(_unkept(file)), nothing=(), signs=(_PRESERVE, _BUDGET)
)
