"""Index a script once for all its readers: its nodes with their places, and what its names stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ckpt_surgery.codemods.facts.file_syntax import methods_of
from ckpt_surgery.codemods.facts.interpreter import Function
from ckpt_surgery.codemods.facts.script_facts import Spot
from ckpt_surgery.codemods.facts.syntax import dotted, imported_names, last_name, span_of, walk


class ScriptNode(NamedTuple):
    """A node of a script and its place: its statement, its function, the tests around it."""

    node: ast.AST
    statement: ast.stmt
    scope: str = ""
    tests: tuple[ast.expr, ...] = ()
    prefix: str = ""
    """What precedes the name of a function that is defined here: the scope, and the classes inside it."""

    @property
    def conditional(self) -> bool:
        """Whether a test decides if the node runs; `if __name__ == "__main__"` does not count."""
        return any(
            not any(isinstance(part, ast.Name) and part.id == "__name__" for part in walk(test)) for test in self.tests
        )

    def tested_for(self, words: re.Pattern[str]) -> bool:
        """Tell whether a test around the node contains certain words."""
        return any(words.search(ast.unparse(test)) for test in self.tests)

    def spot(self, node: ast.expr) -> Spot:
        """Return the place of a finding about a node of this statement."""
        return Spot(span_of(node), self.statement.lineno, self.scope)


class Names:
    """The names of one file, and the nodes that readers ask for. No values are followed."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.places = _places(tree)
        self.calls: list[tuple[ScriptNode, ast.Call]] = []
        self.parameters: set[str] = set()
        self.imported: dict[str, str] = {}
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.assigned: dict[str, list[tuple[ScriptNode, ast.expr]]] = {}
        """What is assigned to each name, `a.b.c`, and to each entry of a dict, `a["key"]`."""
        for place in self.places:
            match place.node:
                case ast.Call() as call:
                    self.calls.append((place, call))
                case ast.arg(arg=name):
                    self.parameters.add(name)
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) as node:
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        name = dotted(target) or ast.unparse(target)
                        self.assigned.setdefault(name, []).append((place, value))
                case ast.Import() | ast.ImportFrom() as node:
                    for name, module, original in imported_names(node):
                        whole = f"{module}.{original}" if original else module
                        is_part = whole.startswith(f"{name}.") and not original  # `import a.b` binds a
                        self.imported[name] = name if is_part else whole
                case ast.FunctionDef() | ast.AsyncFunctionDef() as node if not place.prefix:
                    self.functions[node.name] = node
                case ast.ClassDef() as node if not place.prefix:
                    self.classes[node.name] = node

    def origin(self, node: ast.expr) -> str:
        """Return the full name of what an expression such as `dist.all_reduce` names, or its text."""
        text = dotted(node)
        head, dot, rest = text.partition(".")
        return f"{self.imported.get(head, head)}{dot}{rest}"

    def is_wrapper(self, node: ast.expr) -> bool:
        """Tell whether an expression is DistributedDataParallel, torch's or another library's class of that name."""
        return self.origin(node).rpartition(".")[2] in ("DistributedDataParallel", "DDP")

    def value(self, node: ast.expr | None) -> ast.expr | None:
        """Return an expression, or in place of a name the only value that is assigned to it."""
        if isinstance(node, ast.Name) and node.id not in self.parameters:
            assigned = self.assigned.get(node.id, ())
            return assigned[0][1] if len(assigned) == 1 else node
        return node

    def lineage(self, cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """Yield a class and its bases in this file, each once."""
        waiting = [cls]
        for ancestor in waiting:  # grows while it is read
            yield ancestor
            bases = [self.classes[name] for base in ancestor.bases if (name := dotted(base)) in self.classes]
            waiting += [base for base in bases if base not in waiting]

    def foreign_bases(self, cls: ast.ClassDef) -> list[str]:
        """Return the full names of the classes of other files that a class extends."""
        bases = [self.origin(base) for ancestor in self.lineage(cls) for base in ancestor.bases]
        return [base for base in bases if base not in self.classes]

    def is_trainer(self, cls: ast.ClassDef, *packages: str) -> bool:
        """Tell whether a class extends a Trainer of another file, from these packages if any are given."""
        bases = [base for base in self.foreign_bases(cls) if base.endswith("Trainer")]
        return any(not packages or base.partition(".")[0] in packages for base in bases)

    def trainer_origins(self) -> Iterator[str]:
        """Yield the full names of the Trainers that the script makes; for its own classes, of what they extend."""
        for _, call in self.calls:
            if tail(call.func).endswith("Trainer"):
                cls = self.classes.get(dotted(call.func))
                yield from self.foreign_bases(cls) if cls else [self.origin(call.func)]

    def method(self, cls: ast.ClassDef, name: str, *, above: bool = False) -> Function | None:
        """Return a method of a class or its bases by name; with `above`, of the bases only."""
        lineage = [ancestor for ancestor in self.lineage(cls) if not (above and ancestor is cls)]
        return next((method for cls in lineage for method in methods_of(cls) if method.name == name), None)

    def scopes(self) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
        """Yield the statements of the module, then those of every function with its scope, nested ones too."""
        yield "", self.tree.body
        for place in self.places:
            if isinstance(place.node, Function):
                yield f"{place.prefix}{place.node.name}", place.node.body

    def options(self) -> Iterator[tuple[str, int, ast.expr | None]]:
        """Yield the options of the script, by class fields or parser arguments, with their lines and defaults."""
        for place in self.places:
            match place.node:
                case ast.ClassDef(body=body):
                    for statement in body:
                        match statement:
                            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                                default = keywords(value).get("default") if isinstance(value, ast.Call) else None
                                yield name, statement.lineno, default or value
                case ast.Call(func=func, args=[ast.Constant(value=str(flag)), *_]) as call:
                    if tail(func) == "add_argument":
                        name = flag.lstrip("-").replace("-", "_")
                        yield name, call.lineno, keywords(call).get("default")


@lru_cache(maxsize=1)
def names_of(tree: ast.Module) -> Names:
    """Return the names of a file, kept because its readers ask for them one after the other."""
    return Names(tree)


def keywords(call: ast.Call) -> Mapping[str | None, ast.expr]:
    """Return the keyword arguments of a call by name; one that is unpacked under None."""
    return {keyword.arg: keyword.value for keyword in call.keywords}


def entries(node: ast.expr) -> Mapping[Any, ast.expr]:
    """Return the entries of a `{...}` or a `dict(...)` whose keys are constants."""
    match node:
        case ast.Dict(keys=keys, values=values):
            return {key.value: value for key, value in zip(keys, values, strict=True) if isinstance(key, ast.Constant)}
        case ast.Call(func=ast.Name(id="dict")):
            return keywords(node)
    return {}


def parameters(function: Function) -> dict[str, ast.arg]:
    """Return the parameters of a function, `*args` and `**kwargs` left out."""
    arguments = function.args
    return {node.arg: node for node in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def takes_training_arguments(call: ast.Call) -> bool:
    """Tell whether a call makes the arguments of a Trainer, by its name: `TrainingArguments`, `SFTConfig`."""
    return tail(call.func).endswith(("Arguments", "Config"))


def is_accelerator(node: ast.expr) -> bool:
    """Tell whether an expression is an `Accelerator` of accelerate, by its name."""
    return last_name(node).lower().endswith("accelerator")


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


def tail(node: ast.expr) -> str:
    """Return the last name of a callee: `all_reduce` of `dist.all_reduce`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


_LEAVES = frozenset(
    kind
    for group in (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    for kind in group.__subclasses__()
) | {ast.Name, ast.Constant}
"""Nodes that contain no others."""
_STATEMENTS = frozenset(ast.stmt.__subclasses__())
_PLACED = _STATEMENTS | {ast.Attribute, ast.Call, ast.Dict, ast.IfExp, ast.Subscript, ast.arg}
"""Nodes whose place some reader asks for."""


def _places(tree: ast.Module) -> list[ScriptNode]:
    """Return the nodes that some reader asks for, each with its place, in the order of `ast.walk`."""
    places: list[ScriptNode] = []
    waiting: list[tuple[ast.AST, ast.stmt, str, tuple[ast.expr, ...], str]] = [(tree, ast.Pass(), "", (), "")]
    for here in waiting:  # grows while it is read
        node, statement, scope, tests, prefix = here
        if node.__class__ in _PLACED:
            places.append(ScriptNode(*here))
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    scope = f"{prefix}{name}"
                    prefix = f"{scope}."
                case ast.ClassDef(name=name):
                    prefix = f"{prefix}{name}."
                case ast.If(test=test) | ast.IfExp(test=test):
                    tests = (*tests, test)
        for field in node._fields:
            value = getattr(node, field, None)
            if value.__class__ is list:
                for child in value:
                    if child.__class__ in _STATEMENTS:
                        waiting.append((child, child, scope, tests, prefix))
                    elif isinstance(child, ast.AST) and child.__class__ not in _LEAVES:
                        waiting.append((child, statement, scope, tests, prefix))
            elif value.__class__ not in _LEAVES and isinstance(value, ast.AST):
                waiting.append((value, statement, scope, tests, prefix))
    return places
