"""Find policies of selective checkpointing that decide by counting their calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax, methods_of
from ckpt_surgery.codemods.facts.interpreter import Function
from ckpt_surgery.codemods.facts.syntax import Span, dotted, last_name, span_of, walk

_CONTEXTS = "create_selective_checkpoint_contexts"


class CountingPolicy(NamedTuple):
    """A policy for torch's selective checkpointing, and the expression in which it counts."""

    span: Span
    policy: str
    counter: str


def _counting(file: FileSyntax) -> Iterator[CountingPolicy]:
    nodes = walk(file.tree)
    made = {node.name: node for node in nodes if isinstance(node, Function | ast.ClassDef)}
    for node in nodes:
        match node:
            case ast.Call(func=func, args=[policy, *_]) if dotted(func).endswith(_CONTEXTS):
                pass
            case ast.Call(args=[ast.Name() | ast.Attribute() as func, policy, *_]) if dotted(func).endswith(_CONTEXTS):
                pass
            case _:
                continue
        maker = policy.func if isinstance(policy, ast.Call) else policy
        match made.get(last_name(maker)):
            case ast.ClassDef() as cls:
                functions = [method for method in methods_of(cls) if method.name == "__call__"]
            case ast.FunctionDef() as function:
                inner = [each for each in walk(function)[1:] if isinstance(each, ast.FunctionDef)]
                functions = inner if isinstance(policy, ast.Call) else [function]
            case _:
                continue
        counters = [counter for function in functions for counter in _counters(function)]
        if counters:
            yield CountingPolicy(span_of(policy), ast.unparse(policy), counters[0])


def _counters(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the counters that a policy decides by; none if it asks whether it runs in the recompute."""
    nodes = walk(function)
    if any(isinstance(node, ast.Attribute) and node.attr == "is_recompute" for node in nodes):
        return
    kept = {name for node in nodes if isinstance(node, ast.Nonlocal | ast.Global) for name in node.names}
    read = [ast.unparse(node) for node in nodes if isinstance(getattr(node, "ctx", None), ast.Load)]
    for node in nodes:
        match node:
            case ast.AugAssign(target=ast.Name(id=name)) if name in kept and name in read:
                yield name
            case ast.AugAssign(target=ast.Attribute() | ast.Subscript() as target) if ast.unparse(target) in read:
                yield ast.unparse(target)
            case ast.Call(func=ast.Name(id="next"), args=[counter]):
                yield ast.unparse(counter)


COUNTING_POLICIES = FileFact[tuple[CountingPolicy, ...]](
    "counting_policies", lambda file: tuple(_counting(file)), nothing=(), signs=(_CONTEXTS,)
)
