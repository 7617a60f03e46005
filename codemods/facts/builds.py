"""What attributes are made of: `self.layers = nn.ModuleList([...])` and every other way to build a stack.

Each function is read from top to bottom, with the local names seen so far.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ckpt_surgery.codemods.facts.file_facts import DYNAMIC, Build
from ckpt_surgery.codemods.facts.syntax import dotted, span_of

_CONTAINERS = {"ModuleList", "Sequential", "ModuleDict", "list", "tuple", "dict", "OrderedDict", "set", "reversed"}
SEQUENTIAL = "Sequential"
"""The name of a container that calls what it holds."""
_LEARNED = re.compile(r"(?:.*\.)?(?:Bilinear|Conv\w+|Embedding\w*|LayerNorm|Linear|Parameter\w*|RMSNorm)$")
"""Torch's parameters, and modules that have some of their own."""
_FROM_CONFIG = {"_from_config", "from_config", "from_pretrained"}
_ITERATORS = {"iter", "next"}
_UNKNOWN = Build("unknown")
_MOST_ITEMS = 24
"""Entries beyond these are not followed: a literal with hundreds of them holds no blocks."""


class Builder:
    """Follows the builds of one function body."""

    def __init__(self, given: Iterable[tuple[str, Build]] = ()) -> None:
        self.locals: dict[str, Build] = dict(given)
        self.attributes: dict[str, list[Build]] = {}
        self.returned: list[Build] = []

    def read(self, statements: Iterable[ast.stmt]) -> None:
        """Read statements, also those under `if`, `for`, `with` and `try`."""
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                self._extend(target, _spread(self.of(value)))
            case ast.Expr(value=ast.Call() as call):
                self._call(call)
            case ast.Return(value=ast.expr() as value):
                built = self.of(value)
                if built.kind != "unknown":
                    self.returned.append(built)
            case ast.If(body=body, orelse=orelse):
                self._branches(body, orelse)
            case ast.FunctionDef(name=name, body=body):
                self.locals[name] = self._of_function(body)
            case ast.For(target=target, iter=iterable):
                self._loop(target, iterable)
                self.read(statement.body)
            case _:
                for field in ("body", "orelse", "finalbody"):
                    self.read(getattr(statement, field, ()))
                for inner in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                    self.read(inner.body)

    def _of_function(self, body: list[ast.stmt]) -> Build:
        """What a function inside this one returns."""
        outer, self.returned = self.returned, []
        self.read(body)
        inner, self.returned = self.returned, outer
        return Build("choice", items=tuple(inner)) if inner else _UNKNOWN

    def _branches(self, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        """`x = A` in one branch and `x = B` in the other leave x as either."""
        before = dict(self.locals)
        self.read(body)
        first, self.locals = self.locals, before
        self.read(orelse)
        for name, built in first.items():
            other = self.locals.get(name)
            if other is not None and other != built:
                built = Build("choice", items=(built, other))
            self.locals[name] = built

    def _loop(self, target: ast.expr, iterable: ast.expr) -> None:
        """`for cls in (A, B)` binds `cls` to either."""
        if isinstance(target, ast.Name) and isinstance(iterable, ast.Tuple | ast.List):
            self.locals[target.id] = Build("choice", items=tuple(map(self.of, iterable.elts[:_MOST_ITEMS])))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                built = self.of(value)
                self.locals[name] = _UNKNOWN if built.is_large() else built
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                built = self.of(value)
                self.attributes.setdefault(name, []).append(_UNKNOWN if built.is_large() else built)
            case ast.Subscript(value=container):
                self._extend(container, [self.of(value)])
            case ast.Tuple(elts=targets) if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
                for inner_target, inner_value in zip(targets, value.elts, strict=True):
                    self._assign(inner_target, inner_value)

    def _extend(self, container: ast.expr, items: list[Build]) -> None:
        grown = Build("container", items=tuple(items))
        match container:
            case ast.Name(id=name):
                before = self.locals.get(name, _UNKNOWN)
                built = Build("container", before.name * (before.kind == "container"), (*before.items, *items))
                self.locals[name] = before if built.is_large() else built
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.attributes.setdefault(name, []).append(grown)

    def _call(self, call: ast.Call) -> None:
        match call:
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id="self"), name, value]):
                attribute = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else DYNAMIC
                self.attributes.setdefault(attribute, []).append(self.of(value))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="add_module"), args=[name, value]):
                attribute = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else DYNAMIC
                self.attributes.setdefault(attribute, []).append(self.of(value))
            case ast.Call(
                func=ast.Attribute(value=container, attr="append" | "add_module" | "insert"), args=[*_, value]
            ):
                self._extend(container, [self.of(value)])
            case ast.Call(func=ast.Attribute(value=container, attr="extend"), args=[value]):
                self._extend(container, _spread(self.of(value)))

    def of(self, node: ast.expr) -> Build:
        """What an expression builds."""
        match node:
            case ast.Call():
                return self._of_call(node)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return self._container(elements)
            case ast.Dict(values=values):
                return self._container(values)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
                return Build("container", items=(self._comprehended(element, node.generators),))
            case ast.DictComp(value=element):
                return Build("container", items=(self._comprehended(element, node.generators),))
            case ast.IfExp(body=body, orelse=orelse):
                return Build("choice", items=(self.of(body), self.of(orelse)))
            case ast.BoolOp(values=values):
                return Build("choice", items=tuple(map(self.of, values)))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return Build("container", items=(*self.of(left).items, *self.of(right).items))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.of(left) if isinstance(left, ast.List) else self.of(right)
            case ast.Lambda(body=body):
                return self.of(body)
            case ast.Starred(value=value):
                return Build("choice", items=self.of(value).items)
            case ast.Name(id=name):
                return self.locals.get(name) or (
                    _UNKNOWN if name.islower() else Build("class", name, span=span_of(node))
                )
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return Build("attribute", name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if self.locals.get(name, _UNKNOWN) != _UNKNOWN:
                return Build("member", attribute, (self.locals[name],))
            case ast.Attribute():
                text = dotted(node)
                is_class = text and not text.rpartition(".")[2].islower()
                return Build("class", text, span=span_of(node)) if is_class else _UNKNOWN
            case ast.Subscript(value=value):
                return Build("element", items=(self.of(value),))
        return _UNKNOWN

    def _container(self, elements: list[ast.expr]) -> Build:
        return Build("container", items=tuple(map(self.of, elements[:_MOST_ITEMS])))

    def _comprehended(self, element: ast.expr, generators: list[ast.comprehension]) -> Build:
        for generator in generators:
            self._loop(generator.target, generator.iter)
        return self.of(element)

    def _of_call(self, call: ast.Call) -> Build:
        name = dotted(call.func)
        last = name.rpartition(".")[2]
        if last == "map" and call.args:
            return Build("container", items=(self.of(call.args[0]),))
        if last == "partial" and call.args:
            return self.of(call.args[0])
        if last == "get" and isinstance(call.func, ast.Attribute):
            return Build("element", items=(self.of(call.func.value),))
        if last == "dict" and call.keywords:
            return self._container([keyword.value for keyword in call.keywords])
        if last in _CONTAINERS:
            return Build("container", SEQUENTIAL * (last == SEQUENTIAL), tuple(self._unpacked(_held_by(call))))
        if last in _FROM_CONFIG and isinstance(call.func, ast.Attribute):
            return self.of(call.func.value)
        if last == "deepcopy" and call.args:
            return self.of(call.args[0])
        if "clone" in last.lower() and call.args:
            return Build("container", items=(self.of(call.args[0]),))
        if name in _ITERATORS and call.args:
            built = self.of(call.args[0])
            return Build("element", items=(built,)) if name == "next" else built
        if name.startswith("self.") and name.count(".") == 1:
            return Build("maker", last, tuple(map(self.of, call.args)))
        if last == "skip_init" or self.locals.get(name) == _UNKNOWN:
            return self._made_by_function(call)
        if name in self.locals:
            return self.locals[name]
        if name and name.islower() and call.args:
            return Build("class", name, tuple(map(self.of, call.args)), span_of(call.func))
        if name:
            return Build("class", name, span=span_of(call.func))
        return self.of(call.func)

    def _made_by_function(self, call: ast.Call) -> Build:
        """`make(Layer, config)`: a function that is not known makes an instance of the class it is given."""
        built = self.of(call.args[0]) if call.args else _UNKNOWN
        return built if built.kind == "class" and not built.items else _UNKNOWN

    def _unpacked(self, arguments: list[ast.expr]) -> Iterator[Build]:
        """The items of a container's arguments: a single list argument is the list of items."""
        for argument in arguments[:_MOST_ITEMS]:
            built = self.of(argument.value if isinstance(argument, ast.Starred) else argument)
            if built.kind == "container":
                yield from built.items
            elif built.kind == "unknown" or (isinstance(argument, ast.Call) and _is_constructor(argument)):
                yield built
            else:
                yield Build("spread", items=(built,))


def is_learned(built: Build) -> bool:
    """Whether a build is, or holds, a parameter or a module of torch's that has some."""
    return any(map(_LEARNED.match, built.class_names()))


def _spread(built: Build) -> list[Build]:
    """What a container holds, to be held by another one."""
    return list(built.items) if built.kind == "container" else [Build("spread", items=(built,))]


def _held_by(call: ast.Call) -> list[ast.expr]:
    """What the call of a container gives it to hold: `nn.ModuleList(modules=...)` has a name for it."""
    return [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "modules")]


def _is_constructor(call: ast.Call) -> bool:
    """Whether a call is that of a class: `nn.Sequential(Block(), Block())` holds what its arguments are."""
    return not dotted(call.func).rpartition(".")[2].islower()
