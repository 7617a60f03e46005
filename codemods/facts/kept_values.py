"""What a forward keeps beside what it returns: values that it puts into attributes, containers it is handed, globals.

Followed by data flow from the forward through the methods and functions that it calls. A value comes from what the
forward is given or from a parameter, with its gradient or (behind `detach` or `no_grad`) without.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.argument_names import is_switch, may_carry_gradient
from ckpt_surgery.codemods.facts.syntax import dotted, walk

_ADDING = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_SHAPES = frozenset({"device", "dtype", "layout", "ndim", "requires_grad", "shape", "size", "training"})
_MEASURES = frozenset({"dim", "get_device", "numel", "size", "stride", *_SHAPES})
_NO_VALUES = frozenset({"arange", "empty", "full", "isinstance", "len", "ones", "range", "type", "zeros"})
_NO_GRADIENT = frozenset(
    {"argmax", "argmin", "argsort", "bincount", "bool", "detach", "histc", "int", "item", "long", "one_hot", "tolist"}
)
_TAKING = frozenset({"clear", "pop", "popitem", "popleft", "remove"})
_RANDOM = re.compile(r"(?:random|np\.random|numpy\.random)\.")
_OFF = frozenset({"inference_mode", "no_grad"})
_CACHES = ("past", "cache")
_DEEPEST = 4
"""Functions that call one another deeper than this are not followed."""


class ValueFlow(IntEnum):
    """What a value has of what a forward was given."""

    NOTHING = 0
    VALUE = 1
    GRADIENT = 2


class KeptValue(NamedTuple):
    """What a forward keeps: under which name, in which method, and how it reads."""

    target: str
    method: str
    flow: ValueFlow
    is_state: bool
    """Whether the forward also reads what it changes: a second run would find something else."""


Functions: TypeAlias = Callable[[str], ast.FunctionDef | None]
"""The function of a name at module level, where the files have it."""


@dataclass(slots=True)
class _Frame:
    """One function while it is read: what its names hold, and for which of them that is nobody else's."""

    name: str
    flows: dict[str, ValueFlow] = field(default_factory=dict)
    outer: dict[str, str] = field(default_factory=dict)
    """Names that stand for something that outlives the call, and how it is called outside."""
    result: ValueFlow = ValueFlow.NOTHING


def kept_values(
    methods: Mapping[str, ast.FunctionDef], functions: Functions, *, is_block: bool = True
) -> tuple[KeptValue, ...]:
    """What the forward among a class's methods keeps, gradient first.

    Of a block what it writes into its own input counts, too: the recompute is given that.
    """
    forward = methods.get("forward")
    if forward is None:
        return ()
    reader = _ForwardReader(methods, functions)
    reader.run(forward, dict(_given(forward)))
    found = [
        KeptValue(target, method, flow, target.removeprefix("self.").partition("[")[0] in reader.read)
        for (target, method), flow in reader.kept.items()
    ]
    changed = [place for place in reader.counted if place[0].removeprefix("self.") in reader.loaded]
    changed += [*reader.drawn, *(reader.inputs if is_block else ())]
    found += [KeptValue(*place, ValueFlow.VALUE, is_state=True) for place in dict.fromkeys(changed)]
    kept = [value for value in found if value.flow is ValueFlow.GRADIENT or value.is_state]
    return tuple(sorted(kept, key=lambda value: -value.flow))


def _given(forward: ast.FunctionDef) -> Iterator[tuple[str, ValueFlow]]:
    """What the parameters of a forward hold. The first is what a block transforms."""
    nodes = [*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs]
    for position, node in enumerate(nodes[1:]):
        annotation = ast.unparse(node.annotation) if node.annotation else ""
        if any(word in node.arg for word in _CACHES) or is_switch(node.arg, annotation) or node.arg.endswith("len"):
            yield node.arg, ValueFlow.NOTHING
        else:
            carries = position == 0 or may_carry_gradient(node.arg, annotation)
            yield node.arg, ValueFlow.GRADIENT if carries else ValueFlow.NOTHING


class _ForwardReader:
    """Follows one forward: fills `kept` and `read`."""

    def __init__(self, methods: Mapping[str, ast.FunctionDef], functions: Functions) -> None:
        self.kept: dict[tuple[str, str], ValueFlow] = {}
        self.read: set[str] = set()
        """Attributes of `self` that are read before they are set, or by another method."""
        self.loaded: set[str] = set()
        """Attributes of `self` that are read anywhere but where they are counted up."""
        self.counted: dict[tuple[str, str], None] = {}
        """Attributes whose next value is made of the one before, each with the method."""
        self.drawn: dict[tuple[str, str], None] = {}
        """Random numbers of Python and numpy, and what is taken out of containers that outlive the call."""
        self.inputs: dict[tuple[str, str], None] = {}
        """Tensors that the forward is given and writes into."""
        self._inputs = frozenset(name for name, flow in _given(methods["forward"]) if flow is ValueFlow.GRADIENT)
        self._methods = methods
        self._functions = functions
        self._attributes = dict.fromkeys(_parameters(methods), ValueFlow.GRADIENT)
        self._modules = _assigned(methods.get("__init__"))
        self._set: set[str] = set()
        self._most = ValueFlow.GRADIENT
        self._active: list[str] = []

    def run(self, function: ast.FunctionDef, given: Mapping[str, ValueFlow]) -> ValueFlow:
        """Read a function that is called with these values; return what its result holds."""
        if function.name in self._active or len(self._active) > _DEEPEST:
            return max(given.values(), default=ValueFlow.NOTHING)
        frame = _Frame(function.name)
        is_method = self._methods.get(function.name) is function
        for node in walk(function.args):
            if isinstance(node, ast.arg) and not (is_method and node.arg == "self"):
                frame.flows[node.arg] = given.get(node.arg, ValueFlow.NOTHING)
                if not any(word in node.arg for word in _CACHES):
                    frame.outer[node.arg] = node.arg
        most = self._most
        if any(_is_off(decorator) for decorator in function.decorator_list):
            self._most = ValueFlow.VALUE
        self._active.append(function.name)
        self._block(function.body, frame)
        self._active.pop()
        self._most = most
        return frame.result

    # -- statements

    def _block(self, statements: Iterable[ast.stmt], frame: _Frame) -> None:
        for statement in statements:
            self._statement(statement, frame)

    def _statement(self, statement: ast.stmt, frame: _Frame) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                flow = self._counting(targets[0], value, frame)
                for target in targets:
                    self._store(target, value, flow, frame)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._store(target, value, self._flow(value, frame), frame)
            case ast.AugAssign(target=target, value=value):
                self._augment(target, value, frame)
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                self._store(target, iterable, self._flow(iterable, frame), frame)
                for _ in range(2):  # what one pass sets reaches the next
                    self._block(body, frame)
                self._block(orelse, frame)
            case ast.With(items=items, body=body):
                most = self._most
                for item in items:
                    self._flow(item.context_expr, frame)
                    if _is_off(item.context_expr):
                        self._most = ValueFlow.VALUE
                self._block(body, frame)
                self._most = most
            case ast.Return(value=ast.expr() as value):
                frame.result = max(frame.result, self._flow(value, frame))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.Global(names=names):
                for name in names:
                    frame.outer[name] = name
                    frame.flows.setdefault(f"global {name}", ValueFlow.NOTHING)
            case _:
                for _, value in ast.iter_fields(statement):
                    for inner in value if isinstance(value, list) else [value]:
                        if isinstance(inner, ast.expr):
                            self._flow(inner, frame)
                        elif isinstance(inner, ast.stmt):
                            self._statement(inner, frame)
                        elif isinstance(inner, ast.ExceptHandler | ast.match_case):
                            self._block(inner.body, frame)

    def _augment(self, target: ast.expr, value: ast.expr, frame: _Frame) -> None:
        flow = self._flow(value, frame)
        if isinstance(target, ast.Name):
            self._write_input(target, frame)
            if isinstance(value, ast.List | ast.ListComp):  # `losses += [loss]` adds to the list itself
                self._keep(target, flow, frame)
            frame.flows[target.id] = max(flow, frame.flows.get(target.id, ValueFlow.NOTHING))
            if f"global {target.id}" in frame.flows:
                self._keep(target, flow, frame)
        else:
            attribute = _attribute_of(target)
            if attribute:
                self.read.add(attribute)
                self.counted[(f"self.{attribute}", frame.name)] = None
            self._keep(target, flow, frame)

    def _store(self, target: ast.expr, value: ast.expr, flow: ValueFlow, frame: _Frame) -> None:
        match target:
            case ast.Name(id=name):
                frame.flows[name] = flow
                if f"global {name}" in frame.flows:
                    self._keep(target, flow, frame)
                    return
                origin = self._origin(value, frame)
                if origin:
                    frame.outer[name] = origin
                else:
                    frame.outer.pop(name, None)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(targets) else ()
                for position, inner in enumerate(targets):
                    part = values[position] if values else value
                    self._store(inner, part, self._flow(part, frame) if values else flow, frame)
            case ast.Starred(value=inner):
                self._store(inner, value, flow, frame)
            case ast.Attribute() | ast.Subscript():
                self._keep(target, flow, frame)

    def _counting(self, target: ast.expr, value: ast.expr, frame: _Frame) -> ValueFlow:
        """What a value holds that is assigned: an attribute made of itself is counted up."""
        attribute = _attribute_of(target) if isinstance(value, ast.BinOp) else ""
        if not attribute:
            return self._flow(value, frame)
        flow, loads = self._without_load(attribute, value, frame)
        if loads:
            self.counted[(f"self.{attribute}", frame.name)] = None
        return flow

    def _without_load(self, attribute: str, value: ast.expr, frame: _Frame) -> tuple[ValueFlow, bool]:
        """What a value holds, and whether it reads an attribute: that alone does not count as read."""
        before = attribute in self.loaded
        self.loaded.discard(attribute)
        flow = self._flow(value, frame)
        loads = attribute in self.loaded
        (self.loaded.add if before else self.loaded.discard)(attribute)
        return flow, loads

    def _write_input(self, target: ast.expr, frame: _Frame) -> None:
        """Record that a tensor is written into that the forward was given."""
        if isinstance(target, ast.Name) and len(self._active) == 1:
            origin = frame.outer.get(target.id, "")
            if origin in self._inputs:
                self.inputs[(origin, frame.name)] = None

    # -- what is kept

    def _keep(self, target: ast.expr, flow: ValueFlow, frame: _Frame) -> None:
        """Record that something goes to a place that outlives the call, if it does."""
        if isinstance(target, ast.Subscript) and _is_tensor_write(target, frame):
            self._write_input(target.value, frame)
            return
        name = self._origin(target, frame)
        if not name:
            return
        if name.startswith("self."):
            attribute = name.removeprefix("self.").partition("[")[0]
            self._set.add(attribute)
            self._attributes[attribute] = max(flow, self._attributes.get(attribute, ValueFlow.NOTHING))
        if flow:
            key = (name, frame.name)
            self.kept[key] = max(flow, self.kept.get(key, ValueFlow.NOTHING))

    def _origin(self, node: ast.expr, frame: _Frame) -> str:
        """What outlives the call and holds a place; empty for what is the function's own."""
        match node:
            case ast.Name(id=name):
                return frame.outer.get(name, "" if name in frame.flows else name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return f"self.{name}"
            case ast.Subscript(value=ast.Name(id=name)) if frame.outer.get(name) == name and name == "kwargs":
                return "" if isinstance(node.ctx, ast.Store) else ast.unparse(node)
            case ast.Attribute(value=value):
                origin = self._origin(value, frame)
                return origin if origin.startswith("self.") else ast.unparse(node) * bool(origin)
            case ast.Subscript(value=value):
                return self._origin(value, frame)
            case ast.Call(func=ast.Attribute(value=value, attr="get" | "pop" | "setdefault"), args=[key, *_]):
                origin = self._origin(value, frame)
                return f"{origin}[{ast.unparse(key)}]" if origin else ""
        return ""

    # -- expressions

    def _flow(self, node: ast.expr, frame: _Frame) -> ValueFlow:
        """What an expression holds; what the calls inside it keep is recorded."""
        return min(self._most, self._raw(node, frame))

    def _raw(self, node: ast.expr, frame: _Frame) -> ValueFlow:
        match node:
            case ast.Constant() | ast.Lambda():
                return ValueFlow.NOTHING
            case ast.Name(id=name):
                return frame.flows.get(name, ValueFlow.NOTHING)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.loaded.add(name)
                if name not in self._set:
                    self.read.add(name)
                return self._attributes.get(name, ValueFlow.NOTHING)
            case ast.Attribute(value=value, attr=name):
                flow = self._flow(value, frame)
                return ValueFlow.NOTHING if name in _SHAPES else min(flow, ValueFlow.VALUE if name == "data" else flow)
            case ast.Call():
                return self._call(node, frame)
            case ast.Compare():
                return min(ValueFlow.VALUE, self._most_of(ast.iter_child_nodes(node), frame))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._flow(test, frame)
                return max(self._flow(body, frame), self._flow(orelse, frame))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for generator in node.generators:
                    self._store(generator.target, generator.iter, self._flow(generator.iter, frame), frame)
                parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                return self._most_of(parts, frame)
            case ast.NamedExpr(target=target, value=value):
                flow = self._flow(value, frame)
                self._store(target, value, flow, frame)
                return flow
        return self._most_of(ast.iter_child_nodes(node), frame)

    def _most_of(self, nodes: Iterable[ast.AST], frame: _Frame) -> ValueFlow:
        flows = [self._flow(node, frame) for node in nodes if isinstance(node, ast.expr)]
        return max(flows, default=ValueFlow.NOTHING)

    def _call(self, call: ast.Call, frame: _Frame) -> ValueFlow:
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        given = self._most_of(values, frame)
        if _RANDOM.match(name := dotted(call.func)):
            self.drawn[(name, frame.name)] = None
        match call.func:
            case ast.Name(id="setattr") if len(call.args) == 3:
                owner = self._origin(ast.Attribute(call.args[0], "attribute", ast.Store()), frame)
                if owner and self._flow(call.args[2], frame):
                    key = (f"self.{_text(call.args[1])}" if owner.startswith("self.") else owner, frame.name)
                    self.kept[key] = max(self._flow(call.args[2], frame), self.kept.get(key, ValueFlow.NOTHING))
                return ValueFlow.NOTHING
            case ast.Name(id=name):
                function = None if name in frame.flows else self._functions(name)
                if function:
                    return self.run(function, self._bound(function, call, frame, skip=0))
                return ValueFlow.NOTHING if name in _NO_VALUES else given
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                if name in self._methods:
                    return self.run(self._methods[name], self._bound(self._methods[name], call, frame, skip=1))
                return ValueFlow.GRADIENT if name in self._modules else given
            case ast.Attribute(value=value, attr=name):
                if name in _ADDING:
                    self._add(value, given, frame)
                elif name in _TAKING and (origin := self._origin(value, frame)) not in ("", "kwargs"):
                    self.drawn[(origin, frame.name)] = None
                attribute = _attribute_of(value) if name.endswith("_") and not name.startswith("_") else ""
                base, _ = self._without_load(attribute, value, frame)
                if attribute:
                    self.counted[(f"self.{attribute}", frame.name)] = None
                elif name.endswith("_") and name != "requires_grad_":
                    self._write_input(value, frame)
                if name in _MEASURES or name in _NO_VALUES or name.endswith("_like"):
                    return ValueFlow.NOTHING
                return min(max(base, given), ValueFlow.VALUE if name in _NO_GRADIENT else ValueFlow.GRADIENT)
        return max(given, self._flow(call.func, frame))

    def _add(self, container: ast.expr, given: ValueFlow, frame: _Frame) -> None:
        name = container.id if isinstance(container, ast.Name) and container.id not in frame.outer else ""
        if name in frame.flows:
            frame.flows[name] = max(given, frame.flows[name])
            return
        self._keep(container, given, frame)

    def _bound(self, function: ast.FunctionDef, call: ast.Call, frame: _Frame, *, skip: int) -> dict[str, ValueFlow]:
        """What a call gives the parameters of a function; `skip` of them are bound already."""
        names = [node.arg for node in (*function.args.posonlyargs, *function.args.args)]
        bound = {name: self._flow(node, frame) for name, node in zip(names[skip:], call.args, strict=False)}
        bound |= {keyword.arg: self._flow(keyword.value, frame) for keyword in call.keywords if keyword.arg}
        return bound


def _attribute_of(node: ast.expr) -> str:
    """The attribute of `self` that a chain of calls and subscripts begins with: `self.mean.mul_(0.9)`."""
    while isinstance(node, ast.Call | ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute) and dotted(node.value) == "self":
            return node.attr
        node = node.func if isinstance(node, ast.Call) else node.value
    return ""


def _is_off(node: ast.expr) -> bool:
    """Whether a decorator or a context says that no gradient is wanted."""
    return dotted(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2] in _OFF


def _is_tensor_write(target: ast.Subscript, frame: _Frame) -> bool:
    """Whether a subscript writes into a tensor that the function was given, and not into a dict or list.

    `hidden_states[:, 0] = x`: a container is indexed by a text or by the block's own number.
    """
    if not isinstance(target.value, ast.Name) or not frame.flows.get(target.value.id, ValueFlow.NOTHING):
        return False
    index = target.slice
    return not (
        (isinstance(index, ast.Constant) and isinstance(index.value, str))
        or isinstance(index, ast.JoinedStr)
        or dotted(index).startswith("self.")
    )


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _parameters(methods: Mapping[str, ast.FunctionDef]) -> Iterator[str]:
    """The attributes that are parameters: `self.scale = nn.Parameter(...)`."""
    for node in walk(methods["__init__"]) if "__init__" in methods else ():
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Call(func=function)
            ) if dotted(function).rpartition(".")[2] == "Parameter":
                yield name


def _assigned(function: ast.FunctionDef | None) -> frozenset[str]:
    """The attributes that a constructor sets to what a call returns: most are modules."""
    return frozenset(
        target.attr
        for node in (walk(function) if function else ())
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute) and dotted(target.value) == "self"
    )
