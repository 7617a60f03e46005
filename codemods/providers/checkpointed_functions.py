"""Find checkpoint calls on functions: local ones, lambdas, methods, partials, functions of the module.

A helper that passes its first parameter to a checkpoint function counts as a checkpoint function of the same mode.
Recorded is what such a function captures, and which of that the loop around the call rebinds. Other calls that get a
function which looks up what a loop rebinds are recorded with their callees; the tree finds out whether those
checkpoint. Modules are not read here: `method_reader.py` finds what is checkpointed by way of `self`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.argument_names import is_gradient
from ckpt_surgery.codemods.facts.checkpoint_helpers import (
    CHECKPOINT_ATTRIBUTES,
    is_checkpoint,
    is_model_function,
    refused_keywords,
    speaks_of_checkpointing,
)
from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.interpreter import Function
from ckpt_surgery.codemods.facts.kept_values import Write, written_inputs
from ckpt_surgery.codemods.facts.module_flow import NOTHING, ModuleFlow, Result, Value
from ckpt_surgery.codemods.facts.rebinding import (
    bound_in,
    nodes_of,
    parameters_of,
    read_late,
    rebound_by_loops,
    rebound_later,
)
from ckpt_surgery.codemods.facts.syntax import Argument, Span, arguments_of, dotted, last_name, span_of, values_of
from ckpt_surgery.codemods.scripts.names import keywords

ReentrantOption: TypeAlias = Literal["reentrant", "non_reentrant", "default", "unknown", "model"]
"""The `use_reentrant` of a checkpoint call: True, False, left out, or not shown by the file; `model` if the function
is a model's own, which transformers sets together with the option."""

_RESULT = Result(("<checkpoint>",), plain=True)


class Capture(NamedTuple):
    """A name that a checkpointed function takes from the scope around it instead of as an argument."""

    name: str
    rebound: bool
    """Whether the function looks it up when it runs, and the loop around the call gives it another value."""
    holds_result: bool
    """Whether it may hold what a checkpoint call returned."""
    passed_on: bool
    """Whether the function passes it to a call."""


class WrittenInput(NamedTuple):
    """An argument that a checkpointed function writes into."""

    name: str
    how: Write
    by_keyword: bool
    has_gradient: bool
    """Whether its name says so, or it may be what a checkpoint call returned."""


@dataclass(frozen=True, slots=True)
class CheckpointedFunction:
    """A checkpoint call on a function of this file, which is the first of `args`."""

    scope: str
    span: Span
    first_line: int
    callee: str
    option: ReentrantOption
    args: tuple[Argument, ...]
    captures: tuple[Capture, ...]
    containers: tuple[int, ...] = ()
    """The positions of lists, tuples and dicts that hold what checkpoint calls returned."""
    dropped: tuple[str, ...] = ()
    """Names that are, or may be, None at the call."""
    written: tuple[WrittenInput, ...] = ()
    refused: tuple[str, ...] = ()
    """Keyword arguments that the function has no parameter for."""


class LateBinding(NamedTuple):
    """A call that gets a function which looks up `names` when it runs, although they are rebound before the recompute.

    What rebinds them is a loop around the call (`in_loop`), or the call's statement or a later one in the same suite.
    """

    scope: str
    span: Span
    first_line: int
    function: str
    names: tuple[str, ...]
    in_loop: bool
    argument: int | str
    """The position or the keyword by which the call passes the function."""
    callees: tuple[str, ...]
    """What may be called: a name of the file, `self.run`, or "" for a checkpoint function."""


@dataclass(slots=True)
class _CallInPlace:
    """A call, the code around it, and what holds results of checkpoint calls there."""

    call: ast.Call
    statement: ast.stmt
    loops: tuple[ast.AST, ...]
    """The loops around it, outermost first."""
    names: set[str] = field(default_factory=set)
    """Names that hold what a checkpoint call returned."""
    containers: set[int] = field(default_factory=set)
    """The positions of arguments that hold it in a list, tuple or dict."""


@dataclass(slots=True)
class Checkpointed:
    """The checkpoint calls on functions of one file, and other calls that may be such."""

    calls: tuple[CheckpointedFunction, ...] = ()
    """Those inside helpers are included if the helper is only called with functions."""
    late: tuple[LateBinding, ...] = ()
    """Calls that are at fault if they checkpoint."""


def _checkpointed_functions(file: FileSyntax) -> Checkpointed:
    scopes: list[tuple[ast.FunctionDef, str, Mapping[str, ast.FunctionDef]]]
    scopes = [(node, node.name, {}) for node in file.functions]
    for owner in file.tree.body:
        if isinstance(owner, ast.ClassDef):
            methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
            scopes += [(node, owner.name, methods) for node in methods.values()]
    calls = _Calls(file)
    has_calls = file.mentions(*(f"{name}(" for name in (*file.torch_checkpoint_names, *CHECKPOINT_ATTRIBUTES)))
    if has_calls:
        for scope in [scope for scope in scopes if calls.may_be_in(file.text(scope[0]))]:
            calls.learn(*scope)
    worth_reading = []
    for scope in scopes:
        text = file.text(scope[0])
        makes_functions = "lambda" in text or text.find("def ", len("        def ")) > 0  # after its own `def`
        if makes_functions or (has_calls and calls.may_be_in(text)):
            worth_reading.append(scope)
    read = tuple(call for scope in worth_reading for call in calls.read(*scope))
    return Checkpointed((*read, *calls.in_helpers()), tuple(calls.late))


class _Calls:
    """The checkpoint calls of one file, by name."""

    def __init__(self, file: FileSyntax) -> None:
        self.names = file.checkpoint_names.keys()
        self.functions = {node.name: node for node in file.functions}
        self.late: list[LateBinding] = []
        self._torch_names = file.torch_checkpoint_names
        words = {*CHECKPOINT_ATTRIBUTES, *(name.rpartition(".")[2] for name in self._torch_names)}
        self._words = re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, words)))})\b")
        self._helpers: dict[str, CheckpointedFunction] = {}
        """Helpers by the name that they are called by, each with the checkpoint call in it."""
        self._gets_functions: dict[str, bool] = {}
        """For each helper that is called, whether all its calls pass it functions of the file."""

    def may_be_in(self, text: str) -> bool:
        """Tell whether a function of this text may call a checkpoint function, or a helper."""
        helpers = (name.rpartition(".")[2] in text for name in self._helpers)
        return self._words.search(text) is not None or any(helpers)

    def is_one(self, function: ast.expr) -> bool:
        """Tell whether a callee is a checkpoint function, or a helper."""
        name = dotted(function)
        return is_model_function(function) or name in self._torch_names or name in self._helpers

    def learn(self, function: ast.FunctionDef, scope: str, methods: Mapping[str, ast.FunctionDef]) -> None:
        """Note a function as a helper if it passes its first parameter to a checkpoint function."""
        first = next((argument.arg for argument in function.args.args if argument.arg != "self"), "")
        for place in _Scope(function, self, methods).places.values():
            if dotted(place.call.args[0]) == first:
                self._helpers[f"self.{function.name}" if methods else function.name] = self._made(place, scope, ())

    def read(
        self, function: ast.FunctionDef, scope: str, methods: Mapping[str, ast.FunctionDef]
    ) -> Iterator[CheckpointedFunction]:
        """Read a function and those defined inside it; `methods` are those of its class."""
        reader = _Scope(function, self, methods)
        for place in reader.places.values():
            captures = reader.captures(place)
            helper = dotted(place.call.func)
            if helper in self._helpers:
                self._gets_functions[helper] = self._gets_functions.get(helper, True) and captures is not None
            if captures is not None:
                call = self._made(place, scope, captures)
                containers, written = tuple(sorted(place.containers)), tuple(reader.written(place))
                local = self.functions | {inner.name: inner for inner in reader.inner}
                refused = refused_keywords(place.call, local)
                dropped = reader.dropped(place)
                yield replace(call, containers=containers, dropped=dropped, written=written, refused=refused)
        self.late += reader.late(scope)
        for inner in reader.inner:
            yield from self.read(inner, scope, methods)

    def in_helpers(self) -> Iterator[CheckpointedFunction]:
        """Yield the checkpoint calls in helpers that are only passed functions of the file."""
        return (call for name, call in self._helpers.items() if self._gets_functions.get(name))

    def _made(self, place: _CallInPlace, scope: str, captures: tuple[Capture, ...]) -> CheckpointedFunction:
        call = place.call
        return CheckpointedFunction(
            scope=scope,
            span=span_of(call),
            first_line=place.statement.lineno,
            callee=ast.unparse(call.args[0]),
            option=self._option(call),
            args=arguments_of(call),
            captures=captures,
        )

    def _option(self, call: ast.Call) -> ReentrantOption:
        helper = self._helpers.get(dotted(call.func))
        if helper:
            return helper.option if helper.option == "non_reentrant" else "unknown"
        if is_model_function(call.func):
            return "model"
        given = keywords(call)
        match given.get("use_reentrant"):
            case ast.Constant(value=bool(value)):
                return "reentrant" if value else "non_reentrant"
            case None if None not in given:
                return "default"
        return "unknown"


class _Scope(ModuleFlow):
    """Reads one function: its calls, the names that it binds, and the functions that it makes."""

    def __init__(self, function: ast.FunctionDef, calls: _Calls, methods: Mapping[str, ast.FunctionDef]) -> None:
        parameters = parameters_of(function.args) - {"self"}
        super().__init__(dict.fromkeys(parameters, NOTHING))
        self.places: dict[int, _CallInPlace] = {}
        self.others: dict[int, _CallInPlace] = {}
        """Other calls with arguments."""
        self.inner: list[ast.FunctionDef] = []
        """The functions defined in it."""
        self._calls = calls
        self._function = function
        self._methods = methods
        self._bound = set(parameters)
        self._made: dict[str, list[ast.expr | ast.FunctionDef]] = {}
        """The values of names that may be functions."""
        self._aliases: dict[str, list[ast.expr]] = {}
        """The values of names that may be checkpoint functions."""
        self._resolving: set[str] = set()
        """The names whose functions are being resolved: one may be made of itself."""
        self._none: dict[int, str] = {}
        """Names that are set to None, by line."""
        self.follow(function.body)

    def define(self, node: Function | ast.ClassDef) -> None:
        if isinstance(node, ast.FunctionDef) and node not in self.inner:
            self.inner.append(node)
            self._made.setdefault(node.name, []).append(node)

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Note a name that may be a function, and one that is set to None."""
        super().assign(target, value)
        if isinstance(target, ast.Name) and not isinstance(value, ast.Constant):
            self._aliases.setdefault(target.id, []).append(value)
        match target, value:
            case ast.Name(id=name), ast.Lambda() | ast.Call():
                self._made.setdefault(name, []).append(value)
            case ast.Name(id=name), ast.Constant(value=None):
                self._none[target.lineno] = name

    def bind(self, target: ast.expr, value: Value) -> None:
        super().bind(target, value)
        if isinstance(target, ast.Name):
            self._bound.add(target.id)

    def called(self, node: ast.Call, base: Value, callee: Value, values: Sequence[Value]) -> Value:
        if not node.args or not self._calls.is_one(node.func):
            if node.args or node.keywords:
                self.others.setdefault(id(node), _CallInPlace(node, self.statement, self.loops))
            return super().called(node, base, callee, values)
        place = self.places.setdefault(id(node), _CallInPlace(node, self.statement, self.loops))
        place.names |= {name for name, value in self.env.items() if _RESULT in value.all}
        place.containers |= {index for index, value in enumerate(values) if _RESULT in value.inside}
        return Value(results=frozenset({_RESULT}))

    # -- answers, once the whole function is read

    def captures(self, place: _CallInPlace) -> tuple[Capture, ...] | None:
        """Return what the function of a checkpoint call captures; None if it is not known to be a function."""
        names = self._captured(place.call.args[0])
        if names is None:
            return None
        rebound = rebound_by_loops(place.call, place.statement, place.loops)
        return tuple(
            Capture(name, late and name in rebound, name in place.names, passed_on)
            for name, (late, passed_on) in sorted(names.items())
        )

    def late(self, scope: str) -> Iterator[LateBinding]:
        """Yield the calls that get a function which looks up what is rebound before the recompute."""
        for place in (*self.others.values(), *self.places.values()):
            call = place.call
            given: list[tuple[int | str, ast.expr]] = [*enumerate(call.args)]
            given += [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg]
            for argument, value in given:
                is_known = argument == 0 and id(call) in self.places and self._captured(value) is not None
                looked_up = self._looked_up(value)
                if not looked_up:
                    continue
                in_loop = looked_up & rebound_by_loops(call, place.statement, place.loops)
                later = rebound_later(looked_up - in_loop, place.statement, self._function)
                for names in (set[str]() if is_known else in_loop, later):
                    if names:
                        span, line, rebound = span_of(call), place.statement.lineno, tuple(sorted(names))
                        text, callees = ast.unparse(value), tuple(dict.fromkeys(self._callees(call.func)))
                        yield LateBinding(scope, span, line, text, rebound, names is in_loop, argument, callees)

    def _looked_up(self, node: ast.expr) -> set[str]:
        """Return the names that a function, or one made by a local function (`make(layer)`), looks up when it runs."""
        may_be = node.id in self._made if isinstance(node, ast.Name) else isinstance(node, ast.Lambda | ast.Call)
        if not may_be:
            return set()
        captured = self._captured(node)
        values = self._made.get(node.id, []) if isinstance(node, ast.Name) else [node]
        callees = [dotted(value.func) for value in values if isinstance(value, ast.Call)]
        makers = [made for name in callees for made in self._made.get(name, []) if isinstance(made, ast.FunctionDef)]
        by_makers = set[str]().union(*map(read_late, makers)) & self._bound
        return {name for name, (late, _) in (captured or {}).items() if late} | by_makers

    def _callees(self, node: ast.expr, followed: frozenset[str] = frozenset()) -> Iterator[str]:
        match node:
            case ast.Name(id=name) if name in self._aliases and name not in followed:
                for value in self._aliases[name]:
                    yield from self._callees(value, followed | {name})
            case ast.IfExp(body=body, orelse=orelse):
                yield from self._callees(body, followed)
                yield from self._callees(orelse, followed)
            case ast.Call(func=function, args=[inner]) if last_name(function) == "partial":
                yield from self._callees(inner, followed)
            case ast.Name() | ast.Attribute():
                yield "" if is_checkpoint(node, self._calls.names) else dotted(node)

    def dropped(self, place: _CallInPlace) -> tuple[str, ...]:
        """Return the names that a statement before the call sets to None."""
        return tuple(dict.fromkeys(name for line, name in self._none.items() if line < place.statement.lineno))

    def written(self, place: _CallInPlace) -> Iterator[WrittenInput]:
        """Yield the arguments of a checkpoint call that its function writes into."""
        function, *given = place.call.args
        named = keywords(place.call)
        for node in self._functions(function):
            names = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)]
            arguments = dict(zip([name for name in names if name != "self"], given, strict=False))
            for name, how in written_inputs(node).items():
                value = arguments.get(name, named.get(name))
                has_gradient = is_gradient(name) or (isinstance(value, ast.Name) and value.id in place.names)
                if value is not None and (has_gradient or how in ("method", "idempotent")):
                    yield WrittenInput(name, how, name not in arguments, has_gradient)

    def _functions(self, node: ast.expr) -> list[ast.FunctionDef | ast.Lambda]:
        """Return the functions of this scope, of the module or of the class that an expression may be."""
        match node:
            case ast.Lambda():
                return [node]
            case ast.Name(id=name) if name in self._made:
                return [made for made in self._made[name] if isinstance(made, ast.FunctionDef | ast.Lambda)]
            case ast.Name(id=name) if name in self._calls.functions:
                return [self._calls.functions[name]]
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in self._methods:
                return [self._methods[name]]
        return []

    def _captured(self, node: ast.expr | ast.FunctionDef) -> dict[str, tuple[bool, bool]] | None:
        """Map captured names to whether a function looks them up late, and whether it passes them to a call."""
        match node:
            case ast.Lambda() | ast.FunctionDef():
                return self._of_function(node)
            case ast.Name(id=name) if name in self._made and name not in self._resolving:
                self._resolving.add(name)
                made = [captured for value in self._made[name] if (captured := self._captured(value)) is not None]
                self._resolving.discard(name)
                return {key: value for captured in made for key, value in captured.items()} if made else None
            case ast.Name(id=name):
                return {} if name in self._calls.functions and name not in self._bound else None
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return {} if name in self._methods else None
            case ast.Call(func=function, args=[inner, *rest]) if last_name(function) == "partial":
                captured = self._captured(inner)
                given = [*rest, *(keyword.value for keyword in node.keywords)]
                early = {name: (False, True) for value in given for name in self._values(value)}
                return None if captured is None else {**early, **captured}
        return None

    def _of_function(self, function: ast.FunctionDef | ast.Lambda) -> dict[str, tuple[bool, bool]]:
        early = [*function.args.defaults, *(value for value in function.args.kw_defaults if value)]
        captured = {name: (False, True) for value in early for name in self._values(value)}
        nodes = nodes_of(function)
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        given = {value.id for call in calls for value in values_of(call) if isinstance(value, ast.Name)}
        loaded = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        looked_up = (loaded - bound_in(function)) & self._bound
        captured.update({name: (True, name in given) for name in looked_up})
        return captured

    def _values(self, value: ast.expr) -> set[str]:
        """Return the names of this scope that an expression is, or lists."""
        items = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
        return {item.id for item in items if isinstance(item, ast.Name)} & self._bound


CHECKPOINTED = FileFact[Checkpointed](
    "checkpointed",
    _checkpointed_functions,
    nothing=Checkpointed(),
    signs=("checkpoint",),
    worth=speaks_of_checkpointing,
)
