"""Find the values that a forward stores outside its result: in attributes, globals and containers passed to it.

Data flow is followed from the forward through the methods and functions it calls. A value counts if it is computed
from the forward's arguments or from a parameter, with its gradient or (after `detach`, under `no_grad`) without.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.argument_names import is_switch, may_carry_gradient
from ckpt_surgery.codemods.facts.interpreter import Interpreter
from ckpt_surgery.codemods.facts.syntax import dotted, drops_gradient, last_name, statements_below, values_of, walk

_ADD_METHODS = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_METADATA = frozenset({"device", "dtype", "layout", "ndim", "requires_grad", "shape", "size", "training"})
_METADATA_METHODS = frozenset({"dim", "get_device", "numel", "size", "stride", *_METADATA})
_VALUE_FREE = frozenset({"arange", "empty", "full", "isinstance", "len", "ones", "range", "type", "zeros"})
"""Functions whose result holds no value of their arguments."""
_NO_GRADIENT = frozenset(
    {"argmax", "argmin", "argsort", "bincount", "bool", "detach", "histc", "int", "item", "long", "one_hot", "tolist"}
)
_LOOKUPS = frozenset({"get", "pop", "setdefault"})
_REMOVE_METHODS = frozenset({"clear", "pop", "popitem", "popleft", "remove"})
_RANDOM = re.compile(r"(?:random|np\.random|numpy\.random)\.")
"""Random numbers that torch does not restore for a recompute, unlike its own."""
_CACHES = ("past", "cache")
_IDEMPOTENT = re.compile(r"(?:copy|fill|masked_fill|relu|zero)_$")
Write: TypeAlias = Literal["method", "idempotent", "operator", "item"]
"""How a tensor is written into: by a method, by one that changes nothing when it is called again, by an operator such
as `+=`, or at an index."""
_MAX_CALL_DEPTH = 4
"""Calls nested deeper than this are not followed."""


class ValueFlow(IntEnum):
    """What a value holds of the forward's arguments and the class's parameters."""

    NOTHING = 0
    VALUE = 1
    GRADIENT = 2


class KeptValue(NamedTuple):
    """A place where a forward keeps a value, such as `self.loss`, and the method that stores it there."""

    target: str
    method: str
    flow: ValueFlow
    is_state: bool
    """Whether the forward also reads what it changes there: the recompute would then find another value."""


Functions: TypeAlias = Callable[[str], ast.FunctionDef | None]
"""Looks a module-level function up by name; None if the files do not have it."""


class _Held(NamedTuple):
    """What an expression holds, and the place outside the call (`self.cache`) that it belongs to; empty for none."""

    flow: ValueFlow
    place: str = ""


_NOTHING = _Held(ValueFlow.NOTHING)


def kept_values(
    methods: Mapping[str, ast.FunctionDef], functions: Functions, *, is_block: bool = True
) -> tuple[KeptValue, ...]:
    """Return what the forward among a class's methods keeps, gradient first.

    For a block, writes into its own input count too, because the recompute gets the changed input.
    """
    forward = methods.get("forward")
    if forward is None:
        return ()
    reader = _ForwardReader(methods, functions)
    reader.run(forward, dict(_input_flows(forward)))
    candidates = [
        KeptValue(target, method, flow, target.removeprefix("self.").partition("[")[0] in reader.read)
        for (target, method), flow in reader.kept.items()
    ]
    changed = [place for place in reader.updated if place[0].removeprefix("self.") in reader.loaded]
    changed += [*reader.consumed, *(reader.inputs if is_block else ())]
    candidates += [KeptValue(*place, ValueFlow.VALUE, is_state=True) for place in dict.fromkeys(changed)]
    kept = [value for value in candidates if value.flow is ValueFlow.GRADIENT or value.is_state]
    return tuple(sorted(kept, key=lambda value: -value.flow))


def written_inputs(function: ast.FunctionDef | ast.Lambda) -> dict[str, Write]:
    """Map the parameters that a function writes into, before it rebinds them, to how it does so."""
    body: list[ast.stmt] = function.body if isinstance(function, ast.FunctionDef) else [ast.Return(function.body)]
    node = ast.FunctionDef("forward", function.args, body, [])
    reader = _ForwardReader({"forward": node}, lambda name: None)
    reader.run(node, dict(_input_flows(node)))
    return {place: how for (place, _), how in reader.inputs.items()}


def _input_flows(forward: ast.FunctionDef) -> Iterator[tuple[str, ValueFlow]]:
    """Yield what each parameter of a forward holds. The first, unless an option, is what a block transforms."""
    nodes = [*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs]
    for position, node in enumerate(node for node in nodes if node.arg != "self"):
        annotation = ast.unparse(node.annotation) if node.annotation else ""
        if any(word in node.arg for word in _CACHES) or is_switch(node.arg, annotation) or node.arg.endswith("len"):
            yield node.arg, ValueFlow.NOTHING
        else:
            carries = position == 0 or may_carry_gradient(node.arg, annotation)
            yield node.arg, ValueFlow.GRADIENT if carries else ValueFlow.NOTHING


class _ForwardReader(Interpreter[_Held]):
    """Follows one forward, and what it calls; collects by place and method, such as `("self.loss", "forward")`."""

    nothing = _NOTHING
    passes = 2

    def __init__(self, methods: Mapping[str, ast.FunctionDef], functions: Functions) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], ValueFlow] = {}
        self.read: set[str] = set()
        """Attributes of `self` that are read before anything sets them."""
        self.loaded: set[str] = set()
        """Attributes of `self` that are read anywhere but in an update of themselves."""
        self.updated: dict[tuple[str, str], None] = {}
        """Attributes that are updated from their own value: `self.calls += 1`, `self.mean.mul_(0.9)`."""
        self.consumed: dict[tuple[str, str], None] = {}
        """What differs each time: draws from Python's and numpy's generators, pops from outer containers."""
        self.inputs: dict[tuple[str, str], Write] = {}
        """The forward's own arguments that it writes into."""
        self._inputs = frozenset(name for name, flow in _input_flows(methods["forward"]) if flow is ValueFlow.GRADIENT)
        self._methods = methods
        self._functions = functions
        constructor = walk(methods["__init__"]) if "__init__" in methods else []
        self._attributes: dict[str, ValueFlow] = {}
        self._modules: set[str] = set()  # what the constructor sets to the result of a call is mostly modules
        for node in constructor:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                attributes = [target for target in node.targets if isinstance(target, ast.Attribute)]
                names = [target.attr for target in attributes if dotted(target.value) == "self"]
                self._modules.update(names)
                if last_name(node.value.func) == "Parameter":
                    self._attributes |= dict.fromkeys(names, ValueFlow.GRADIENT)
        self._stored: set[str] = set()
        """Attributes of `self` that have been set so far."""
        self._flow_limit = ValueFlow.GRADIENT
        """What a value can hold here: no gradient under `no_grad`."""
        self._active: list[str] = []
        """The functions being read, the innermost last."""
        self._locals: frozenset[str] = frozenset()
        """Names that the innermost function binds somewhere."""

    def run(self, function: ast.FunctionDef, given: Mapping[str, ValueFlow]) -> _Held:
        """Read a function that is called with `given`; return what its result holds."""
        if function.name in self._active or len(self._active) > _MAX_CALL_DEPTH:
            return _Held(max(given.values(), default=ValueFlow.NOTHING))
        env: dict[str, _Held] = {}
        is_method = self._methods.get(function.name) is function
        for node in walk(function.args):
            if isinstance(node, ast.arg) and not (is_method and node.arg == "self"):
                is_cache = any(word in node.arg for word in _CACHES)
                env[node.arg] = _Held(given.get(node.arg, ValueFlow.NOTHING), "" if is_cache else node.arg)
        outer_state = self._flow_limit, self._locals
        if any(map(drops_gradient, function.decorator_list)):
            self._flow_limit = ValueFlow.VALUE
        statements = (node for node in statements_below(function) if isinstance(node, ast.Global))
        global_names = {name for node in statements for name in node.names}
        stored = (node for node in walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self._locals = frozenset(node.id for node in stored) - global_names
        self._active.append(function.name)
        returned = self.enter(function.body, env)
        self._active.pop()
        self._flow_limit, self._locals = outer_state
        return _Held(max((value.flow for value in returned), default=ValueFlow.NOTHING))

    @property
    def _method(self) -> str:
        return self._active[-1]

    # -- values

    def join(self, values: Sequence[_Held]) -> _Held:
        places = {value.place for value in values}
        place = places.pop() if len(places) == 1 else ""  # a value that may be local does not surely outlive the call
        return _Held(max((value.flow for value in values), default=ValueFlow.NOTHING), place)

    def compute(self, values: Sequence[_Held]) -> _Held:
        """Return the flow alone: a computed value is local."""
        return _Held(self.join(values).flow)

    contain = compute

    def part(self, value: _Held, position: int) -> _Held:
        return value

    def value(self, node: ast.expr) -> _Held:
        """Return what an expression holds: no gradient under `no_grad`."""
        held = super().value(node)
        return held if held.flow <= self._flow_limit else held._replace(flow=self._flow_limit)

    def name(self, node: ast.Name) -> _Held:
        """Return the value of a name; one that the function does not bind is itself a place outside the call."""
        return self.env.get(node.id, _Held(ValueFlow.NOTHING, "" if node.id in self._locals else node.id))

    def attribute(self, node: ast.Attribute, base: _Held) -> _Held:
        name = node.attr
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            self.loaded.add(name)
            if name not in self._stored:
                self.read.add(name)
            return _Held(self._attributes.get(name, ValueFlow.NOTHING), f"self.{name}")
        limit = ValueFlow.VALUE if name == "data" else ValueFlow.GRADIENT
        flow = ValueFlow.NOTHING if name in _METADATA else min(base.flow, limit)
        return _Held(flow, base.place if base.place.startswith("self.") else ast.unparse(node) if base.place else "")

    def subscript(self, node: ast.Subscript) -> _Held:
        """Return what an item holds: it lives as long as its container."""
        index, base = self.value(node.slice), self.value(node.value)
        is_of_kwargs = base.place == "kwargs" and isinstance(node.value, ast.Name)
        return _Held(max(index.flow, base.flow), ast.unparse(node) if is_of_kwargs else base.place)

    def compare(self, node: ast.Compare | ast.UnaryOp) -> _Held:
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return _Held(min(ValueFlow.VALUE, self._joined_flow(parts)))

    # -- what is kept

    def inside(self, node: ast.With | ast.AsyncWith) -> bool:
        limit = self._flow_limit
        if any(drops_gradient(item.context_expr) for item in node.items):
            self._flow_limit = ValueFlow.VALUE
        ended = self.follow(node.body)
        self._flow_limit = limit
        return ended

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Follow `target = value`; an attribute computed from itself is updated."""
        attribute = _attribute_of(target) if isinstance(value, ast.BinOp) else ""
        if not attribute:
            super().assign(target, value)
            return
        held, is_update = self._value_without_load(attribute, value)
        if is_update:
            self.updated[(f"self.{attribute}", self._method)] = None
        self.bind(target, held)

    def augment(self, node: ast.AugAssign) -> None:
        flow, target = self.value(node.value).flow, node.target
        if isinstance(target, ast.Name):
            before = self.env.get(target.id, _Held(ValueFlow.NOTHING, target.id))
            self._write_input(target, "operator")
            if isinstance(node.value, ast.List | ast.ListComp) or target.id not in self._locals:
                self._keep(before.place, flow)  # `losses += [loss]` adds to the list itself
            self.env[target.id] = before._replace(flow=max(flow, before.flow))
            return
        if attribute := _attribute_of(target):
            self.read.add(attribute)
            self.updated[(f"self.{attribute}", self._method)] = None
        self.store(target, _Held(flow))

    def bind(self, target: ast.expr, value: _Held) -> None:
        """Bind a target; a global name outlives the call."""
        super().bind(target, value)
        if isinstance(target, ast.Name) and target.id not in self._locals:
            self._keep(target.id, value.flow)

    def store(self, target: ast.Attribute | ast.Subscript, value: _Held) -> None:
        if isinstance(target, ast.Subscript) and self._is_tensor_write(target):
            self._write_input(target.value, "item")
        else:
            self._keep(self._place(target), value.flow)

    def _place(self, node: ast.expr) -> str:
        """Return the place outside the call that a target belongs to; empty for a local one."""
        match node:
            case ast.Subscript(value=ast.Name(id="kwargs")):
                return "" if isinstance(node.ctx, ast.Store) else ast.unparse(node)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return f"self.{name}"
            case ast.Attribute(value=value):
                place = self._place(value)
                return place if place.startswith("self.") else ast.unparse(node) if place else ""
            case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value=value, attr="get" | "setdefault")):
                return self._place(value)
            case ast.Name():
                return self.name(node).place
        return ""

    def _keep(self, place: str, flow: ValueFlow) -> None:
        """Record that a value is stored at a place outside the call; an empty place is inside."""
        if place.startswith("self."):
            attribute = place.removeprefix("self.").partition("[")[0]
            self._stored.add(attribute)
            self._attributes[attribute] = max(flow, self._attributes.get(attribute, ValueFlow.NOTHING))
        if place and flow:
            key = (place, self._method)
            self.kept[key] = max(flow, self.kept.get(key, ValueFlow.NOTHING))

    def _write_input(self, target: ast.expr, how: Write) -> None:
        """Record a write into one of the forward's own arguments."""
        if isinstance(target, ast.Name) and len(self._active) == 1:
            place = self.env.get(target.id, _NOTHING).place
            if place in self._inputs:
                self.inputs[(place, self._method)] = how

    def _value_without_load(self, attribute: str, value: ast.expr) -> tuple[_Held, bool]:
        """Return what a value holds, and whether it reads an attribute, without noting that read as a load."""
        before = attribute in self.loaded
        self.loaded.discard(attribute)
        held = self.value(value)
        loads = attribute in self.loaded
        (self.loaded.add if before else self.loaded.discard)(attribute)
        return held, loads

    def _is_tensor_write(self, target: ast.Subscript) -> bool:
        """Tell whether a subscript writes into a tensor, as in `hidden_states[:, 0] = x`, and not into a container.

        Dicts and lists are indexed by a string or by the block's own number.
        """
        index = target.slice
        is_text = isinstance(index, ast.JoinedStr) or isinstance(getattr(index, "value", None), str)
        if not isinstance(target.value, ast.Name) or is_text or dotted(index).startswith("self."):
            return False
        return bool(self.env.get(target.value.id, _NOTHING).flow)

    # -- calls

    def _joined_flow(self, nodes: Iterable[ast.expr]) -> ValueFlow:
        return max((self.value(node).flow for node in nodes), default=ValueFlow.NOTHING)

    def call(self, node: ast.Call) -> _Held:
        given = self._joined_flow(values_of(node))
        if _RANDOM.match(name := dotted(node.func)):
            self.consumed[(name, self._method)] = None
        match node.func:
            case ast.Name(id="setattr") if len(node.args) == 3:
                owner, attribute, value = node.args
                target = ast.Attribute(owner, ast.unparse(attribute).strip("'"), ast.Store())
                self._keep(self._place(target), self.value(value).flow)
                return _NOTHING
            case ast.Name(id=name):
                function = None if name in self.env else self._functions(name)
                if function:
                    return self.run(function, self._bound(function, node, skip=0))
                return _NOTHING if name in _VALUE_FREE else _Held(given)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                if name in self._methods:
                    return self.run(self._methods[name], self._bound(self._methods[name], node, skip=1))
                return _Held(ValueFlow.GRADIENT if name in self._modules else given)
            case ast.Attribute(value=value, attr=name):
                return self._method_call(value, name, node, given)
        return _Held(max(given, self.value(node.func).flow))

    def _method_call(self, owner: ast.expr, name: str, node: ast.Call, given: ValueFlow) -> _Held:
        """Return what a method call on anything but `self` holds, after noting what it adds, removes or writes."""
        writes = name.endswith("_") and not name.startswith("_")
        attribute = _attribute_of(owner) if writes else ""
        if name in _ADD_METHODS:
            place = self._place(owner)
            if isinstance(owner, ast.Name) and owner.id in self.env and not place:
                self.env[owner.id] = _Held(max(given, self.env[owner.id].flow))
            else:
                self._keep(place, given)
        base, _ = self._value_without_load(attribute, owner)
        if name in _REMOVE_METHODS and base.place not in ("", "kwargs"):
            self.consumed[(base.place, self._method)] = None
        if attribute:
            self.updated[(f"self.{attribute}", self._method)] = None
        elif writes and name != "requires_grad_":
            self._write_input(owner, "idempotent" if _IDEMPOTENT.match(name) else "method")
        place = f"{base.place}[{ast.unparse(node.args[0])}]" if name in _LOOKUPS and node.args and base.place else ""
        if name in _METADATA_METHODS or name in _VALUE_FREE or name.endswith("_like"):
            return _Held(ValueFlow.NOTHING, place)
        flow = min(max(base.flow, given), ValueFlow.VALUE if name in _NO_GRADIENT else ValueFlow.GRADIENT)
        return _Held(flow, place)

    def _bound(self, function: ast.FunctionDef, call: ast.Call, *, skip: int) -> dict[str, ValueFlow]:
        """Return what a call gives each parameter of a function; the first `skip` (`self`) are not passed."""
        names = [node.arg for node in (*function.args.posonlyargs, *function.args.args)]
        bound = {name: self.value(node).flow for name, node in zip(names[skip:], call.args, strict=False)}
        bound |= {keyword.arg: self.value(keyword.value).flow for keyword in call.keywords if keyword.arg}
        return bound


def _attribute_of(node: ast.expr) -> str:
    """Return the attribute of `self` that a chain of calls and subscripts begins with: `self.mean.mul_(0.9)`."""
    while isinstance(node, ast.Call | ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute) and dotted(node.value) == "self":
            return node.attr
        node = node.func if isinstance(node, ast.Call) else node.value
    return ""
