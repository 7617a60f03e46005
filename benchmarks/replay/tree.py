"""A transformers models folder as the replay's judge reads it: files, classes, bases and forward signatures.

Written apart from the codemods on purpose, so that one cannot hide the other's errors. Calls are in
`replay_sites`, grades in `replay_grade`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

LAYER = "GradientCheckpointingLayer"
SELF = "self"
PACKAGE = "transformers.models."


@dataclass(frozen=True, slots=True)
class Signature:
    """A forward without `self`: `positional` in order, `keyword_only`, the names behind `*` and `**`, and defaults."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...] = ()
    star: str = ""
    double_star: str = ""
    defaults: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, function: ast.FunctionDef, *, bound: bool = True) -> Signature:
        """Read a function's parameters; `bound` drops the first one, `self`."""
        arguments = function.args
        ordered = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        with_default = ordered[len(ordered) - len(arguments.defaults) :]
        defaults = [(n, ast.unparse(d)) for n, d in zip(with_default, arguments.defaults, strict=True)]
        return cls(
            positional=tuple(ordered[1:] if bound else ordered),
            keyword_only=tuple(a.arg for a in arguments.kwonlyargs),
            star=arguments.vararg.arg if arguments.vararg else "",
            double_star=arguments.kwarg.arg if arguments.kwarg else "",
            defaults=tuple(defaults),
        )


@dataclass(eq=False)
class Class:
    """One class statement. `guard` tells definitions of one name apart: the branch of the test around it, or ""."""

    file: File
    node: ast.ClassDef
    guard: str

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def bases(self) -> tuple[str, ...]:
        """The bases as written, without keywords such as `metaclass`."""
        return tuple(ast.unparse(base) for base in self.node.bases)

    @cached_property
    def methods(self) -> dict[str, ast.FunctionDef]:
        return {s.name: s for s in self.node.body if isinstance(s, ast.FunctionDef)}

    @cached_property
    def parents(self) -> dict[str, dict[ast.AST, ast.AST]]:
        """By method: every node below it, breadth first, with the node that holds it."""
        return {name: _parents(method) for name, method in self.methods.items()}

    @cached_property
    def puts(self) -> dict[str, dict[str, list[ast.expr]]]:
        """By method, by dotted name: every expression assigned, added or appended to that name."""
        return {name: _puts(nodes) for name, nodes in self.parents.items()}

    @cached_property
    def ancestors(self) -> tuple[Class, ...]:
        """The class itself, then every base found in the tree, depth first."""
        chain: list[Class] = []
        self._climb(chain)
        return tuple(chain)

    def _climb(self, chain: list[Class]) -> None:
        if self in chain:
            return
        chain.append(self)
        for base in self.node.bases:
            for parent in self.file.classes_called(ast.unparse(base)):
                parent._climb(chain)

    @cached_property
    def is_layer(self) -> bool:
        """Whether a GradientCheckpointingLayer stands somewhere in the base chain."""
        return any(self_or_base.is_layer_itself for self_or_base in self.ancestors)

    @cached_property
    def is_layer_itself(self) -> bool:
        """Whether one of the bases written here is the layer, or an alias of it."""
        named = (self.file.imports.get(base, ("", base))[1] for base in self.bases)
        return any(base.rsplit(".", 1)[-1] == LAYER for base in named)

    @cached_property
    def signature(self) -> Signature | None:
        """The forward's signature, inherited where the class has none; None where the tree has none."""
        for owner in self.ancestors:
            if "forward" in owner.methods:
                return Signature.of(owner.methods["forward"])
        return None


@dataclass(frozen=True, slots=True)
class GuardedImport:
    """A name imported inside a branch of a module level test: what such a guard may define as a class elsewhere."""

    name: str
    original: str
    guard: str
    line: int


@dataclass(eq=False)
class File:
    """One parsed file. `path` is relative to the models folder, with forward slashes."""

    tree: Tree
    path: str
    module: ast.Module
    mentions_checkpoint: bool
    classes: dict[str, list[Class]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)
    guarded_imports: list[GuardedImport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._read(self.module.body, "")

    def _read(self, body: list[ast.stmt], guard: str) -> None:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                self.classes.setdefault(statement.name, []).append(Class(self, statement, guard))
            elif isinstance(statement, ast.ImportFrom) and statement.module:
                target = self._resolve(statement.level, statement.module)
                for alias in statement.names:
                    self.imports[alias.asname or alias.name] = (target, alias.name)
                    if guard:
                        made = GuardedImport(alias.asname or alias.name, alias.name, guard, statement.lineno)
                        self.guarded_imports.append(made)
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self.aliases[statement.targets[0].id] = statement.value
            elif isinstance(statement, ast.If):
                test = ast.unparse(statement.test)
                self._read(statement.body, f"{guard}if {test}: ")
                self._read(statement.orelse, f"{guard}if not ({test}): ")
            elif isinstance(statement, ast.Try):
                for branch in (statement.body, statement.orelse, *(h.body for h in statement.handlers)):
                    self._read(branch, guard)

    def _resolve(self, level: int, module: str) -> str:
        """The path, relative to the models folder, of the file that an import names; "" for one outside."""
        if not level:
            return module.removeprefix(PACKAGE).replace(".", "/") + ".py" if module.startswith(PACKAGE) else ""
        folder = self.path.split("/")[:-1]
        up = level - 1
        if up > len(folder):
            return ""
        return "/".join([*folder[: len(folder) - up], *module.split(".")]) + ".py"

    def classes_called(self, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> list[Class]:
        """Every definition `name` may stand for in this file, through imports and module level aliases."""
        if (self.path, name) in seen:
            return []
        seen |= {(self.path, name)}
        if name in self.classes:
            return self.classes[name]
        if name in self.imports:
            path, original = self.imports[name]
            other = self.tree.file(path)
            return other.classes_called(original, seen) if other else []
        if name in self.aliases:
            return [c for n in names_in(self.aliases[name]) for c in self.classes_called(n, seen)]
        return []

    def every_class(self) -> Iterator[Class]:
        for definitions in self.classes.values():
            yield from definitions


class Tree:
    """The PyTorch modeling and modular files below a models folder, parsed when first asked for.

    `judged` are the paths to compare: all, or those of one family (a folder name). Raises FileNotFoundError
    where there are none; `file` raises SyntaxError where one does not parse.
    """

    def __init__(self, root: Path, family: str = "") -> None:
        self.root = root
        self._files: dict[str, File | None] = {}
        named = [p for pattern in ("modeling_*.py", "modular_*.py") for p in root.rglob(pattern)]
        paths = sorted(p.relative_to(root).as_posix() for p in named if not p.name.startswith(OTHER_FRAMEWORKS))
        self.judged = [path for path in paths if not family or family in path.split("/")[:-1]]
        if not self.judged:
            raise FileNotFoundError(f"no modeling_*.py or modular_*.py of {family or 'any family'} below {root}")

    def file(self, path: str) -> File | None:
        """One file by its path relative to the folder, or None where there is no such file."""
        if path not in self._files:
            place = self.root / path
            self._files[path] = None
            if place.is_file():
                text = place.read_text(encoding="utf-8")
                self._files[path] = File(self, path, ast.parse(text, filename=path), "checkpoint" in text)
        return self._files[path]

    def judged_files(self) -> Iterator[File]:
        """The files to compare, in the order of their paths."""
        for path in self.judged:
            file = self.file(path)
            if file:
                yield file


ADDING = ("append", "extend", "insert", "add_module")
OTHER_FRAMEWORKS = ("modeling_tf_", "modeling_flax_")


def _parents(method: ast.FunctionDef) -> dict[ast.AST, ast.AST]:
    parents: dict[ast.AST, ast.AST] = {}
    waiting: list[ast.AST] = [method]
    for node in waiting:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.expr_context, ast.operator, ast.cmpop)):
                parents[child] = node
                waiting.append(child)
    return parents


def _puts(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                values.setdefault(dotted(target), []).append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDING:
            values.setdefault(dotted(node.func.value), []).extend(node.args)
    return values


def names_in(node: ast.AST) -> list[str]:
    """The plain names read in `node`, in order, without repeats."""
    return list(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name)))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text, with any subscripts left out; "" for anything that is not such a chain."""
    parts: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
