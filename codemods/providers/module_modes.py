"""Find the modules that a class holds in eval mode, and those that it holds in plain lists."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from ckpt_surgery.codemods.facts.fact import ClassFact
from ckpt_surgery.codemods.facts.file_facts import AttributePath
from ckpt_surgery.codemods.facts.module_flow import SELF, ModuleFlow, Value
from ckpt_surgery.codemods.facts.syntax import dotted, last_name, passes_false, walk

_PLAIN = (ast.List, ast.ListComp, ast.Tuple, ast.Dict, ast.DictComp, ast.GeneratorExp, ast.Set, ast.SetComp)
_PLAIN_CALLS = frozenset({"dict", "list", "tuple", "deque"})
_REGISTERS = frozenset({"add_module", "register_module", "setattr"})
_EVAL_FUNCTION = re.compile(r"(?:^|_)eval(?:_|$)")
"""The name of a function that takes modules out of training mode."""
_EVALUATING = re.compile(
    r"\.eval\(\s*\)|\.train\([^)]*\bFalse|\.train\s*=(?!=)|\.training\s*=\s*False"
    r"|(?<![\w.])\w*(?:freeze|eval)\w*\(\s*self\.\w"
)
_SIGNS = ("eval", ".train(", ".train =", ".train=", ".training =", ".training=", "freeze")


def held_in_eval(cls: ast.ClassDef, functions: Callable[[str], ast.FunctionDef | None]) -> frozenset[AttributePath]:
    """Return the paths to the modules that the methods of a class take out of training mode, except the class itself.

    `self.blocks.eval()`, `block.train(False)` in a loop over them, `block.train = disabled`, and what is passed to one
    of `functions` that does such a thing, or to a function named `set_eval` or the like that is not among them.
    """
    reader = _EvalReader(functions)
    for method in cls.body:
        if isinstance(method, ast.FunctionDef):
            reader.env = {"self": SELF}
            reader.follow(method.body)
    return frozenset(reader.held - {()})


class _EvalReader(ModuleFlow):
    """Collects in `held` the paths to modules that are taken out of training mode."""

    def __init__(self, functions: Callable[[str], ast.FunctionDef | None]) -> None:
        super().__init__({})
        self.held: set[AttributePath] = set()
        self._functions = functions

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case (ast.Attribute(value=module, attr="train"), _) | (
                ast.Attribute(value=module, attr="training"),
                ast.Constant(value=False),
            ):
                self.held |= self.value(module).paths
        super().assign(target, value)

    def called(self, node: ast.Call, base: Value, callee: Value, values: Sequence[Value]) -> Value:
        match node:
            case ast.Call(func=ast.Attribute(attr="eval"), args=[]):
                self.held |= base.paths
            case ast.Call(func=ast.Attribute(attr="train")) if passes_false(node):
                self.held |= base.paths
            case ast.Call(func=ast.Attribute(attr="apply"), args=[function]) if _evaluates(function):
                self.held |= base.paths
            case ast.Call(func=ast.Name(id=name), args=[_, *_]) if values[0].paths:
                function_node = self._functions(name)
                if _evaluates(function_node) if function_node else _EVAL_FUNCTION.search(name):
                    self.held |= values[0].paths
        return super().called(node, base, callee, values)


def _evaluates(function: ast.AST) -> bool:
    calls = [node for node in walk(function) if isinstance(node, ast.Call)]
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "eval" for call in calls)


def plain_lists(cls: ast.ClassDef) -> frozenset[str]:
    """Return the attributes that are plain lists, tuples or dicts; none if the class registers modules by name."""
    plain: set[str] = set()
    others: set[str] = set()
    for method in cls.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        names: set[str] = set()
        for node in walk(method):
            match node:
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    is_plain = _is_plain(value, names)
                    if isinstance(target, ast.Name):
                        (names.add if is_plain else names.discard)(target.id)
                    elif isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                        (plain if is_plain else others).add(target.attr)
                case ast.Call(func=function) if last_name(function) in _REGISTERS:
                    return frozenset()
    return frozenset(plain - others)


def _is_plain(value: ast.expr, names: set[str]) -> bool:
    match value:
        case ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Name(id=name)):
            return name in _PLAIN_CALLS
        case ast.BinOp(left=left, right=right):
            return _is_plain(left, names) or _is_plain(right, names)
    return isinstance(value, _PLAIN)


MAY_EVALUATE = ClassFact(
    "may_evaluate", lambda cls, file: _EVALUATING.search(file.text(cls)) is not None, nothing=False, signs=_SIGNS
)
"""Whether the code of a class may take modules out of training mode."""
