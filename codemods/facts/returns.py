"""What a forward returns its tensors in: nested tuples and dicts, where reentrant checkpointing does not see them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ckpt_surgery.codemods.facts.syntax import Span, last_name, span_of

_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try)
_NO_GRADIENT = re.compile(r"key|value|state\b|present|past|cache|attn|attention_w|weight|prob|logit|None")


def nested_returns(statements: list[ast.stmt]) -> Iterator[Span]:
    """Yield where a returned tuple is given a tuple of tensors as an item, directly or through a name."""
    values: dict[str, list[ast.stmt]] = {}
    returns: list[ast.Return] = []
    for statement in _flat(statements):
        if isinstance(statement, ast.Return):
            returns.append(statement)
            continue
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_nested(value):
                values.setdefault(name, []).append(statement)
    for returned in returns:
        if returned.value is not None and _is_nested(returned.value):
            yield span_of(returned)
        elif isinstance(returned.value, ast.Name):
            yield from map(span_of, values.pop(returned.value.id, ()))


def returns_mapping(statements: list[ast.stmt]) -> bool:
    """Tell whether a dict or an output class is returned, directly or through a name."""
    mappings: set[str] = set()
    for statement in _flat(statements):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_mapping(value, mappings):
                mappings.add(name)
            case ast.Return(value=ast.expr() as value) if _is_mapping(value, mappings):
                return True
    return False


def _is_mapping(value: ast.expr, names: set[str]) -> bool:
    match value:
        case ast.Call(func=function):
            name = last_name(function)
            return name == "dict" or name.endswith("Output")
        case ast.Name(id=name):
            return name in names
    return isinstance(value, ast.Dict | ast.DictComp | ast.List)


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        if isinstance(statement, _COMPOUND):
            for name in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, name, ()))


def _is_nested(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_nested(value.left) or _is_nested(value.right)
    return isinstance(value, ast.Tuple) and any(
        isinstance(item, ast.Tuple | ast.List)
        and any(not _NO_GRADIENT.search(ast.unparse(inner)) for inner in item.elts)
        for item in value.elts
    )
