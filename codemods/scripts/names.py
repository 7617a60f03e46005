"""A script's names: where imports come from, and its own functions, classes and methods. No values are followed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ckpt_surgery.codemods.facts.syntax import dotted, walk

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Names:
    """The names of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(walk(tree))
        self.imported = dict(_imported(self.nodes))
        self.functions = {function.name: function for function in _top(tree.body) if isinstance(function, Function)}
        self.classes = {cls.name: cls for cls in _top(tree.body) if isinstance(cls, ast.ClassDef)}

    def origin(self, node: ast.expr) -> str:
        """The full name of what an expression such as `dist.all_reduce` names, or its text; empty for others."""
        text = dotted(node)
        head, dot, rest = text.partition(".")
        return f"{self.imported.get(head, head)}{dot}{rest}"

    def is_module(self, node: ast.expr) -> bool:
        """Whether an expression names something imported."""
        return dotted(node).partition(".")[0] in self.imported

    def lineage(self, cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """A class and its bases in this file, each once."""
        seen: set[str] = set()
        waiting = [cls]
        while waiting:
            ancestor = waiting.pop(0)
            if ancestor.name not in seen:
                seen.add(ancestor.name)
                yield ancestor
                waiting += [self.classes[name] for base in ancestor.bases if (name := dotted(base)) in self.classes]

    def method(self, cls: ast.ClassDef, name: str, *, above: bool = False) -> Function | None:
        """A method by name; `above` looks in the bases only."""
        lineage = [ancestor for ancestor in self.lineage(cls) if not (above and ancestor is cls)]
        return next((method for cls in lineage for method in methods(cls) if method.name == name), None)

    def is_trainer(self, cls: ast.ClassDef, *packages: str) -> bool:
        """Whether a class extends a Trainer of another file, from these packages if any are given."""
        bases = [self.origin(base) for ancestor in self.lineage(cls) for base in ancestor.bases]
        return any(
            base.endswith("Trainer")
            and base not in self.classes
            and (not packages or base.partition(".")[0] in packages)
            for base in bases
        )


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters, `*args` and `**kwargs` left out."""
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def scopes(names: Names) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """The module's own statements, then those of every function with its scope, nested ones too."""
    waiting: list[tuple[str, Sequence[ast.stmt]]] = [("", names.tree.body)]
    while waiting:
        scope, body = waiting.pop(0)
        yield scope, body
        waiting += [(f"{scope}.{name}".lstrip("."), function.body) for name, function in _functions_in(body)]


def _functions_in(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """The functions and methods among statements, those inside other functions left out."""
    for statement in body:
        if isinstance(statement, Function):
            yield f"{prefix}{statement.name}", statement
        elif isinstance(statement, ast.ClassDef):
            yield from _functions_in(statement.body, f"{prefix}{statement.name}.")
        else:
            yield from _functions_in(inner_statements(statement), prefix)


def inner_statements(statement: ast.stmt) -> list[ast.stmt]:
    """The statements inside a compound statement."""
    parts = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    parts += [part.body for name in ("handlers", "cases") for part in getattr(statement, name, ())]
    return [inner for part in parts for inner in part]


def methods(cls: ast.ClassDef) -> Iterator[Function]:
    """The methods of a class."""
    return (statement for statement in _top(cls.body) if isinstance(statement, Function))


def is_distributed_data_parallel(origin: str) -> bool:
    """Whether a full name is that of the wrapper, torch's or another library's of the same name."""
    return origin.rpartition(".")[2] in ("DistributedDataParallel", "DDP")


def takes_training_arguments(call: ast.Call) -> bool:
    """Whether a call makes the arguments of a Trainer, by its name: `TrainingArguments`, `SFTConfig`."""
    return tail(call.func).endswith(("Arguments", "Config"))


def is_test(node: ast.AST) -> bool:
    """Whether what is inside a node may run or not; `if __name__ == "__main__"` does not count."""
    return isinstance(node, ast.If | ast.IfExp) and not any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in walk(node.test)
    )


def nodes_and_tests(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Every node in source order, and whether it stands under a test."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, under_test = waiting.pop()
        yield node, under_test
        under_test = under_test or is_test(node)
        waiting += [(child, under_test) for child in reversed(list(ast.iter_child_nodes(node)))]


def is_accelerator(node: ast.expr) -> bool:
    """Whether an expression is an `Accelerator` of accelerate, by its name."""
    return dotted(node).rpartition(".")[2].lower().endswith("accelerator")


def words(text: str) -> frozenset[str]:
    """A set of names, written with blanks between them."""
    return frozenset(text.split())


def tail(node: ast.expr) -> str:
    """The last name of a callee: `all_reduce` of `dist.all_reduce`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"


def _top(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, also those under `if` and `try`."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _top(statement.body)
            yield from _top(statement.orelse)
            for handler in getattr(statement, "handlers", ()):
                yield from _top(handler.body)
