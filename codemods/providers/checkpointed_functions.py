"""Calls of a checkpoint function on functions: local ones, lambdas, methods, partials, functions of the module.

A helper that hands its first parameter to a checkpoint function counts as one, with the helper's mode.
What such a function captures from around it is recorded, and which of that the loop around the call rebinds. Modules
are not the subject: `method_reader.py` has what is checkpointed by way of `self`.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.checkpoint_helpers import CHECKPOINT_ATTRIBUTES, TORCH, is_given
from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.module_flow import ModuleFlow, Result, Value
from ckpt_surgery.codemods.facts.syntax import Argument, Span, arguments_of, dotted, span_of, walk

TORCH_OPTIONS = frozenset(
    {"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}
)
"""The keywords that torch's checkpoint function keeps for itself."""

ReentrantOption: TypeAlias = Literal["reentrant", "non_reentrant", "default", "unknown", "model"]
"""What a checkpoint call says of `use_reentrant`: True, False, nothing, or what the file does not show; `model` where
the function is a model's own, which transformers sets together with the option."""

_Function: TypeAlias = ast.FunctionDef | ast.Lambda
_RESULT = Result(("<checkpoint>",), plain=True)


class Capture(NamedTuple):
    """A name that a checkpointed function takes from around it instead of as an argument."""

    name: str
    rebound: bool
    """Whether the function looks it up when it runs, and the loop around the call gives it another value."""
    holds_result: bool
    """Whether it may hold what a checkpoint call returned."""
    passed_on: bool
    """Whether the function hands it to a call."""


@dataclass(frozen=True, slots=True)
class CheckpointedFunction:
    """A call of a checkpoint function on a function of this file. `args` begin with that function."""

    scope: str
    span: Span
    first_line: int
    callee: str
    option: ReentrantOption
    args: tuple[Argument, ...]
    captures: tuple[Capture, ...]
    containers: tuple[int, ...] = ()
    """The arguments that hold what checkpoint calls returned in a list, tuple or dict."""
    dropped: tuple[str, ...] = ()
    """Names that are None where the call stands, or may be."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A checkpoint call, its statement, and the loops around it, outermost first."""

    call: ast.Call
    statement: ast.stmt
    loops: tuple[ast.For | ast.While, ...]


def _checkpointed_functions(file: FileSyntax) -> tuple[CheckpointedFunction, ...]:
    """The checkpoint calls on functions of one file."""
    own = (name for name, module in file.checkpoint_names.items() if module == TORCH)
    names = {f"{TORCH}.checkpoint", *own}
    if not any(f"{name}(" in file.source for name in (*names, *CHECKPOINT_ATTRIBUTES)):
        return ()
    scopes = [_Scoped(node, node.name) for node in file.functions]
    for owner in file.tree.body:
        if isinstance(owner, ast.ClassDef):
            methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
            scopes += [_Scoped(node, owner.name, frozenset(node.name for node in methods)) for node in methods]
    reader = _Reader(names, {node.name for node in file.functions})
    for work in (reader.learn, reader.read):
        for scope in scopes:
            if reader.concerns(file.text(scope.function)):
                work(scope.function, scope.name, scope.methods)
    return reader.result()


class _Scoped(NamedTuple):
    """A function, the function or class that a finding in it is about, and the methods beside it."""

    function: ast.FunctionDef
    name: str
    methods: frozenset[str] = frozenset()


class _Reader:
    """Reads the functions and methods of one file.

    Args:
        torch_names: what the file calls torch's checkpoint function.
        functions: the functions that the module defines.
    """

    def __init__(self, torch_names: Collection[str], functions: Collection[str]) -> None:
        self._torch_names = torch_names
        self._words = {*CHECKPOINT_ATTRIBUTES, *(name.rpartition(".")[2] for name in torch_names)}
        self._pattern = re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, self._words)))})\b")
        self._functions = functions
        self._found: list[CheckpointedFunction] = []
        self._helpers: dict[str, ReentrantOption] = {}
        self._in_helpers: dict[str, CheckpointedFunction] = {}
        self._learned: dict[int, list[_Place]] = {}
        """The calls of each function, before any helper was known."""
        self._running: dict[str, bool] = {}
        """For each helper that is called, whether it runs functions alone."""

    def result(self) -> tuple[CheckpointedFunction, ...]:
        """What was read, and the calls inside those helpers that run functions alone."""
        inside = (call for name, call in self._in_helpers.items() if self._running.get(name))
        return (*self._found, *inside)

    def concerns(self, text: str) -> bool:
        """Whether a function of this text may call a checkpoint function, or a helper."""
        if any(word in text for word in self._words) and self._pattern.search(text):
            return True
        return any(name.rpartition(".")[2] in text for name in self._helpers)

    def learn(self, function: ast.FunctionDef, scope: str, methods: Collection[str] = ()) -> None:
        """See whether a function is a helper; to be done for all of a file before any is read."""
        parameters = [argument.arg for argument in function.args.args]
        first = next((name for name in parameters if name != "self"), "")
        self._learned[id(function)] = places = list(self._places(function.body, ()))
        for place in places:
            match place.call.args[0]:
                case ast.Name(id=name) if name == first:
                    helper = f"self.{function.name}" if methods else function.name
                    self._in_helpers[helper] = self._function(place, scope, ())
        self._helpers = {name: call.option for name, call in self._in_helpers.items()}

    def read(self, function: ast.FunctionDef, scope: str, methods: Collection[str] = ()) -> None:
        """Read a function and those that it defines; `methods` are those of its class."""
        waiting: deque[ast.stmt] = deque([function])
        while waiting:
            inner = waiting.popleft()
            waiting.extend(_inner_statements(inner))
            if isinstance(inner, ast.FunctionDef):
                self._scope(inner, scope, methods)

    def _scope(self, function: ast.FunctionDef, scope: str, methods: Collection[str]) -> None:
        learned = None if self._helpers else self._learned.get(id(function))
        places = list(self._places(function.body, ())) if learned is None else learned
        reader: _Scope | None = None
        for place in places:
            captures = None
            if _may_be_function(place.call.args[0]):
                reader = reader or _Scope(function, self._functions, methods, places)
                captures = reader.captures(place)
            helper = dotted(place.call.func)
            if helper in self._helpers:
                self._running[helper] = self._running.get(helper, True) and captures is not None
            if reader and captures is not None:
                call = self._function(place, scope, captures)
                self._found.append(replace(call, containers=reader.containers(place), dropped=reader.dropped(place)))

    def _function(self, place: _Place, scope: str, captures: tuple[Capture, ...]) -> CheckpointedFunction:
        return CheckpointedFunction(
            scope=scope,
            span=span_of(place.call),
            first_line=place.statement.lineno,
            callee=ast.unparse(place.call.args[0]),
            option=self._option(place.call),
            args=arguments_of(place.call),
            captures=captures,
        )

    def _option(self, call: ast.Call) -> ReentrantOption:
        helper = self._helpers.get(dotted(call.func))
        if helper:
            return helper if helper == "non_reentrant" else "unknown"
        if is_given(call.func):
            return "model"
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        match given.get("use_reentrant"):
            case ast.Constant(value=bool(value)):
                return "reentrant" if value else "non_reentrant"
            case None if None not in given:
                return "default"
        return "unknown"

    def _places(self, statements: Iterable[ast.stmt], loops: tuple[ast.For | ast.While, ...]) -> Iterator[_Place]:
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            inner = (*loops, statement) if isinstance(statement, ast.For | ast.While) else loops
            for node in _expressions(statement):
                for call in walk(node):
                    if isinstance(call, ast.Call) and call.args and self._is_checkpoint(call.func):
                        yield _Place(call, statement, loops)
            yield from self._places(_inner_statements(statement), inner)

    def _is_checkpoint(self, function: ast.expr) -> bool:
        name = dotted(function)
        return is_given(function) or name in self._torch_names or name in self._helpers


class _ResultReader(ModuleFlow):
    """Follows what checkpoint calls return through the function that has them.

    For each call `names` has the names that hold such a result, and `containers` the positions of the arguments that
    hold one in a list, tuple or dict.
    """

    def __init__(self, places: Iterable[_Place]) -> None:
        super().__init__({})
        self.names: dict[int, set[str]] = {id(place.call): set() for place in places}
        self.containers: dict[int, set[int]] = {call: set() for call in self.names}

    def called(self, node: ast.Call, base: Value, callee: Value, values: Sequence[Value]) -> Value:
        """Note what a checkpoint call is given."""
        if id(node) not in self.names:
            return super().called(node, base, callee, values)
        self.names[id(node)] |= {name for name, value in self.env.items() if _RESULT in value.all}
        self.containers[id(node)] |= {at for at, value in enumerate(values) if _RESULT in value.inside}
        return Value(results=frozenset({_RESULT}))


class _Scope:
    """One function with checkpoint calls: the names that it binds, and the functions that it makes of them."""

    def __init__(
        self,
        function: ast.FunctionDef,
        functions: Collection[str],
        methods: Collection[str],
        places: Iterable[_Place],
    ) -> None:
        self._functions = functions
        self._methods = methods
        self._made: dict[str, list[ast.expr | ast.FunctionDef]] = {}
        self._bound = _parameters(function.args) - {"self"}
        self._statements = tuple(_own_statements(function.body))
        for statement in self._statements:
            if isinstance(statement, ast.FunctionDef):
                self._made.setdefault(statement.name, []).append(statement)
                continue
            self._bound |= _stored(statement)
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() | ast.Call() as value):
                    self._made.setdefault(name, []).append(value)
        self._flow = _ResultReader(places)
        self._flow.follow(function.body)

    def captures(self, place: _Place) -> tuple[Capture, ...] | None:
        """What the function of a checkpoint call captures; None where it is no function, or not known to be one."""
        names = self._captured(place.call.args[0])
        if names is None:
            return None
        rebound = _rebound(place)
        holding = self._flow.names.get(id(place.call), ())
        return tuple(
            Capture(name, late and name in rebound, name in holding, kept)
            for name, (late, kept) in sorted(names.items())
        )

    def containers(self, place: _Place) -> tuple[int, ...]:
        """The arguments of a call that hold results of checkpoint calls in a list, tuple or dict."""
        return tuple(sorted(self._flow.containers.get(id(place.call), ())))

    def dropped(self, place: _Place) -> tuple[str, ...]:
        """The names that a statement before the call sets to None."""
        before = (statement for statement in self._statements if statement.lineno < place.statement.lineno)
        names = []
        for statement in before:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None)):
                    names.append(name)
        return tuple(dict.fromkeys(names))

    def _captured(self, node: ast.expr | ast.FunctionDef) -> dict[str, tuple[bool, bool]] | None:
        """The names that a function captures: whether it looks them up when it runs, and whether it passes them on."""
        match node:
            case ast.Lambda() | ast.FunctionDef():
                return self._of_function(node)
            case ast.Name(id=name) if name in self._made:
                made = [captured for value in self._made[name] if (captured := self._captured(value)) is not None]
                return {key: value for captured in made for key, value in captured.items()} if made else None
            case ast.Name(id=name):
                return {} if name in self._functions and name not in self._bound else None
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return {} if name in self._methods else None
            case ast.Call(func=function, args=[inner, *rest]) if dotted(function).rpartition(".")[2] == "partial":
                captured = self._captured(inner)
                given = [*rest, *(keyword.value for keyword in node.keywords)]
                early = {name: (False, True) for value in given for name in self._values(value)}
                return None if captured is None else {**early, **captured}
        return None

    def _of_function(self, function: _Function) -> dict[str, tuple[bool, bool]]:
        early = [*function.args.defaults, *(value for value in function.args.kw_defaults if value)]
        captured = {name: (False, True) for value in early for name in self._values(value)}
        body = function.body if isinstance(function, ast.FunctionDef) else [ast.Expr(function.body)]
        own = _parameters(function.args).union(*(_stored(inner) for inner in body))
        loaded = {inner.id for inner in _walk(body) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)}
        given = {
            value.id
            for call in _walk(body)
            if isinstance(call, ast.Call)
            for value in (*call.args, *(keyword.value for keyword in call.keywords))
            if isinstance(value, ast.Name)
        }
        captured.update({name: (True, name in given) for name in (loaded - own) & self._bound})
        return captured

    def _values(self, value: ast.expr) -> set[str]:
        """The names of this scope that an expression hands on as they are."""
        items = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
        return {item.id for item in items if isinstance(item, ast.Name)} & self._bound


def _may_be_function(node: ast.expr) -> bool:
    """Whether what a checkpoint call runs may be a function: `layer.__call__` is none."""
    match node:
        case ast.Attribute(value=value):
            return isinstance(value, ast.Name) and value.id == "self"
        case ast.Call(func=function, args=[inner, *_]):
            return dotted(function).rpartition(".")[2] == "partial" and _may_be_function(inner)
    return isinstance(node, ast.Name | ast.Lambda)


def _rebound(place: _Place) -> set[str]:
    """The names that have another value after the loops around a call: their targets, and what is made of these.

    A loop that runs the backward pass itself is over before it rebinds anything.
    """
    loops = [loop for loop in place.loops if not _runs_backward(loop)]
    names = {name for loop in loops if isinstance(loop, ast.For) for name in _stored(ast.Expr(loop.target))}
    statements = [inner for loop in loops[:1] for inner in _own_statements(loop.body)]
    before = -1
    while len(names) > before:
        before = len(names)
        for statement in statements:
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) and statement.value:
                nodes = list(walk(statement.value))
                read = {node.id for node in nodes if isinstance(node, ast.Name)}
                if isinstance(statement, ast.AugAssign) or place.call in nodes or read & names:
                    names |= _stored(statement)
    return names


def _runs_backward(loop: ast.For | ast.While) -> bool:
    calls = (dotted(node.func) for node in walk(loop) if isinstance(node, ast.Call))
    return any(name.endswith(("backward", "autograd.grad")) for name in calls)


def _walk(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    for statement in statements:
        yield from walk(statement)


def _parameters(arguments: ast.arguments) -> set[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument}


def _stored(statement: ast.stmt) -> set[str]:
    nodes = walk(statement)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, not those of the statements inside it."""
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.expr):
            yield node
        elif isinstance(node, ast.withitem):
            yield node.context_expr


def _inner_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield node
        elif isinstance(node, ast.ExceptHandler | ast.match_case):
            yield from node.body


def _own_statements(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements and those inside them; a nested function or class counts as one."""
    for statement in statements:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _own_statements(_inner_statements(statement))


CHECKPOINTED = FileFact[tuple[CheckpointedFunction, ...]]("checkpointed", _checkpointed_functions, nothing=())
