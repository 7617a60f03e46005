"""Where a method calls modules that it reaches from `self`: in loops over stacks, by index, in closures, and in inline
checkpoint branches.

Values are followed top to bottom through one method; an `if` joins what its branches bound.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ckpt_surgery.codemods.facts.argument_names import is_past_state
from ckpt_surgery.codemods.facts.checkpoint_helpers import (
    function_of,
    is_checkpoint,
    is_checkpoint_function,
    is_given,
    runs_what_it_is_given,
)
from ckpt_surgery.codemods.facts.file_facts import (
    DYNAMIC,
    ELEMENT,
    LOCAL,
    AttributePath,
    BranchStatement,
    CheckpointCall,
    HandedOn,
    InlineBranch,
    ModuleCall,
    Wrapping,
)
from ckpt_surgery.codemods.facts.inline_branches import conditions, elif_places, guarded_name, read_later
from ckpt_surgery.codemods.facts.method_values import NO_MODULES, SELF, Env, bind, bind_loop, calls_several, value_of
from ckpt_surgery.codemods.facts.result_flow import ResultFlow, has_unknown_keyword
from ckpt_surgery.codemods.facts.syntax import (
    UNPACKED,
    Argument,
    Span,
    arguments_of,
    calls_and_loops,
    dotted,
    span_of,
    walk,
)

_BUILTINS = frozenset(dir(builtins))
_STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(slots=True)
class MethodReader:
    """Reads one method: fills `calls`, `inlines` and `handed_on`."""

    method: str
    direct: frozenset[str]
    """Attributes whose own call (`self.layer(...)`) is wanted, besides elements of containers."""
    checkpoint_names: frozenset[str]
    """Names that this file imports a checkpoint function as."""
    accessors: Env
    """What methods of the class return, and do nothing else."""
    may_checkpoint: bool
    """Whether a test of the method may be about checkpointing."""
    given: set[str] = field(default_factory=set)
    """Names of checkpoint functions: `run = checkpoint if self.gradient_checkpointing else call`."""
    calls: list[ModuleCall] = field(default_factory=list)
    inlines: list[InlineBranch] = field(default_factory=list)
    handed_on: list[HandedOn] = field(default_factory=list)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    """Those of the method, without `self`."""
    _taken: set[int] = field(default_factory=set)

    def read(self, function: ast.FunctionDef) -> None:
        """Read the whole method."""
        self.parameters = frozenset(node.arg for node in function.args.args if node.arg != "self")
        self._block(function.body, {"self": SELF, **self.accessors})
        if self.calls:
            self._follow_results(function)
        if self.inlines:
            self._guards(function)

    def _follow_results(self, function: ast.FunctionDef) -> None:
        """Fill in which arguments of the calls hold what calls returned."""
        places = {call.span: frozenset(call.paths) for call in self.calls}
        flow = ResultFlow(places, sources=any(has_unknown_keyword(call.args) for call in self.calls))
        flow.read(function)
        followed = {call: replace(call, carried=flow.carried(call.span)) for call in self.calls}
        self.calls = list(followed.values())
        for position, inline in enumerate(self.inlines):
            direct = tuple(followed.get(call, call) for call in inline.direct)
            self.inlines[position] = replace(inline, direct=direct)

    # -- statements

    def _block(self, statements: Iterable[ast.stmt], env: Env) -> None:
        for statement in statements:
            self._statement(statement, env)

    def _statement(self, statement: ast.stmt, env: Env) -> None:
        match statement:
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                self._expressions(iterable, statement, env)
                bind_loop(target, iterable, env)
                self._block(statement.body, env)
                self._block(statement.orelse, env)
            case ast.If():
                self._if(statement, env)
            case ast.FunctionDef():
                self.functions[statement.name] = statement
            case ast.Assign(targets=targets, value=value):
                self._expressions(value, statement, env)
                if self.may_checkpoint and is_checkpoint_function(value, self.checkpoint_names):
                    self.given.update(target.id for target in targets if isinstance(target, ast.Name))
                for target in targets:
                    bind(target, value, env)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._expressions(value, statement, env)
                bind(target, value, env)
            case ast.ClassDef():
                return
            case _:
                self._other(statement, env)

    def _other(self, statement: ast.stmt, env: Env) -> None:
        for name, value in ast.iter_fields(statement):
            if name in _STATEMENT_FIELDS:
                for inner in value:
                    if isinstance(inner, ast.stmt):
                        self._statement(inner, env)
                    else:
                        self._block(inner.body, env)
            elif isinstance(value, ast.expr):
                self._expressions(value, statement, env)
            elif name == "items":
                for item in value:
                    self._expressions(item.context_expr, statement, env)
                    if isinstance(item.optional_vars, ast.Name):
                        env.pop(item.optional_vars.id, None)

    def _if(self, statement: ast.If, env: Env) -> None:
        inline = self._inline_head(statement.test, statement.body)
        self._expressions(statement.test, statement, env)
        before = dict(env)
        first, first_handed = len(self.calls), len(self.handed_on)
        self._block(statement.body, env)
        if inline:
            del self.calls[first:]
        elif self._asks(statement.test):
            self.handed_on[first_handed:] = [handed._replace(function="") for handed in self.handed_on[first_handed:]]
        other = before
        first = len(self.calls)
        self._block(statement.orelse, other)
        for name, value in other.items():
            env[name] = env.get(name, NO_MODULES) | value
        if inline:
            self.inlines.append(self._inline(statement, inline, before | env, tuple(self.calls[first:])))

    def _callable(self, node: ast.expr, env: Env) -> tuple[frozenset[AttributePath], Wrapping]:
        """What a checkpoint function is given to run, and how it is wrapped."""
        match node:
            case ast.Attribute(value=value, attr="__call__" | "forward"):
                return value_of(value, env).paths, "plain"
            case ast.Call(func=function, args=[inner, *_]) if dotted(function).rpartition(".")[2] == "partial":
                return self._callable(inner, env)[0], "partial"
            case ast.Call(func=ast.Name(), args=[inner, *_]):
                return self._callable(inner, env)[0], "custom"
            case ast.Name(id=name) if name in self.functions:
                return frozenset(), "closure"
        return value_of(node, env).paths, "plain"

    # -- expressions

    def _expressions(self, node: ast.expr, statement: ast.stmt, env: Env) -> None:
        """Record the calls inside an expression that reach an element of a container or a wanted attribute."""
        calls, loops, named, choices = calls_and_loops(node)
        heads = [self._inline_head(choice.test, [choice.body]) for choice in choices]
        first = len(self.calls)
        for walrus in named:
            bind(walrus.target, walrus.value, env)
        if loops:
            env = dict(env)
            for loop in loops:
                bind_loop(loop.target, loop.iter, env)
        for call in calls:
            if is_checkpoint(call.func, self.checkpoint_names):
                self._bare(call, statement, env)
                continue
            self._hand_on(call, env)
            if isinstance(call.func, ast.Name) and call.func.id in self.functions:
                self._enter(call, self.functions[call.func.id], env)
                self._record(call, statement, frozenset({(LOCAL, call.func.id)}))
                continue
            if not isinstance(call.func, ast.Name | ast.Attribute | ast.Subscript) and not _is_getattr(call.func):
                continue
            paths = value_of(_uncalled(call.func), env).paths
            wanted = frozenset(path for path in paths if self._wanted(path))
            if wanted:
                self._record(call, statement, wanted)

        for choice, head in zip(choices, heads, strict=True):
            if head:
                self._choice(choice, head, env, self.calls[first:])

    def _hand_on(self, call: ast.Call, env: Env) -> None:
        """Record the modules among a call's arguments: what is called may checkpoint them."""
        values = (*call.args, *(keyword.value for keyword in call.keywords))
        modules = [v for v in values if isinstance(v, ast.Name | ast.Attribute | ast.Subscript)]
        name = dotted(call.func)
        if name in self.given or (self.may_checkpoint and runs_what_it_is_given(call, self.checkpoint_names)):
            reached = [path for module in modules for path in value_of(_uncalled(module), env).paths if path]
            if reached:
                elements = [(*path, ELEMENT) for path in reached if path[-1] != ELEMENT]
                self.handed_on.append(HandedOn("", tuple(sorted([*reached, *elements]))))
            return
        reached = [path for module in modules for path in value_of(module, env).paths]
        paths = [path for path in reached if self._wanted(path)]
        if isinstance(call.func, ast.Name) and name not in _BUILTINS:
            paths += [(*path, ELEMENT) for path in reached if path and path[-1] != ELEMENT]  # whole stacks
        if paths and name:
            others = any(not isinstance(value, ast.Constant) and not value_of(value, env).paths for value in values)
            self.handed_on.append(HandedOn(name, tuple(sorted(paths)), others))

    def _wanted(self, path: AttributePath) -> bool:
        return bool(path) and (path[-1] in (ELEMENT, DYNAMIC) or (len(path) == 1 and path[0] in self.direct))

    def _record(self, call: ast.Call, statement: ast.stmt, paths: frozenset[AttributePath]) -> None:
        self.calls.append(
            ModuleCall(
                method=self.method,
                span=span_of(call),
                statement=span_of(statement),
                callee=ast.unparse(call.func),
                paths=tuple(sorted(paths)),
                args=arguments_of(call),
            )
        )

    def _enter(self, call: ast.Call, function: ast.FunctionDef, env: Env) -> None:
        """Read a local function at its call, with its parameters bound to what it is given."""
        if id(function) in self._taken:
            return
        self._taken.add(id(function))
        inner = dict(env)
        names = [parameter.arg for parameter in function.args.args]
        given = dict(zip(names, call.args, strict=False))
        given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
        for name, node in given.items():
            inner[name] = value_of(node, env)
        self._block(function.body, inner)

    def _made_by(self, function: ast.FunctionDef, env: Env) -> None:
        """Record what the function runs that a local function makes to be checkpointed."""
        reader = MethodReader(self.method, self.direct, self.checkpoint_names, self.accessors, self.may_checkpoint)
        inner = [node for node in walk(function) if isinstance(node, ast.FunctionDef)]
        reader._block([statement for node in inner for statement in node.body], dict(env))
        paths = {path for call in reader.calls for path in call.paths if path[0] != LOCAL}
        if paths:
            self.handed_on.append(HandedOn("", tuple(sorted(paths))))

    # -- inline branches

    def _checkpoints(self, parts: Iterable[ast.stmt | ast.expr]) -> list[ast.Call]:
        nodes = (inner for part in parts for inner in walk(part))
        return [
            inner
            for inner in nodes
            if isinstance(inner, ast.Call) and is_checkpoint(inner.func, self.checkpoint_names) and function_of(inner)
        ]

    def _inline_head(self, test: ast.expr, body: Iterable[ast.stmt | ast.expr]) -> list[ast.Call]:
        """The checkpoint calls of an inline branch, when this test is that of one and none has taken them yet."""
        if not self._asks(test):
            return []
        calls = [call for call in self._checkpoints(body) if id(call) not in self._taken]
        self._taken.update(map(id, calls))
        return calls

    def _asks(self, test: ast.expr) -> bool:
        """Whether a test is about checkpointing."""
        return self.may_checkpoint and "checkpoint" in ast.unparse(test)

    def _bare(self, call: ast.Call, statement: ast.stmt, env: Env) -> None:
        if id(call) in self._taken or function_of(call) is None:
            return
        self._taken.add(id(call))
        if self._is_helper(call, env):
            return
        checkpoint = self._checkpoint(call, env)
        self.inlines.append(InlineBranch(self.method, span_of(statement), (checkpoint,)))

    def _is_helper(self, call: ast.Call, env: Env) -> bool:
        """Whether the method hands on what it is given itself: its callers say what is checkpointed."""
        match call.args:
            case [ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="__call__" | "forward"), *_]:
                return name in self.parameters and name not in env
        return False

    def _checkpoint(self, call: ast.Call, env: Env) -> CheckpointCall:
        callee = function_of(call)
        assert callee is not None, "it runs something"
        paths, wrapping = self._callable(callee, env)
        match call.args:
            case [ast.Call(func=ast.Name(id=name)), *_] if name in self.functions and not paths:
                self._made_by(self.functions[name], env)
        return CheckpointCall(
            callee=ast.unparse(callee),
            paths=tuple(sorted(path for path in paths if path)),
            args=self._given_on(call) if wrapping in ("partial", "custom") else arguments_of(call, skip=1),
            wrapping=wrapping,
            span=span_of(call),
            is_given=is_given(call.func),
            runs_several=self._runs_several(callee, env),
            body=self._body(call),
        )

    def _body(self, call: ast.Call) -> Span | None:
        match call.args:
            case [ast.Name(id=name), *_] if name in self.functions:
                return span_of(self.functions[name])
        return None

    def _runs_several(self, callee: ast.expr, env: Env) -> bool:
        """Whether what is checkpointed is a function, or made by one, that calls other than one module once."""
        match callee:
            case ast.Call(func=ast.Name(id=name), args=positional, keywords=keywords) if name != "partial":
                values = [value_of(node, env) for node in (*positional, *(keyword.value for keyword in keywords))]
                if sum(bool(value.paths) for value in values) > 1:
                    return True
                maker = self.functions.get(name)
                if maker is None:
                    return False
                names = [parameter.arg for parameter in maker.args.args][: len(positional)]
                names += [keyword.arg or "" for keyword in keywords]
                given = dict(zip(names, values, strict=False))
                return calls_several(maker, env, self.functions, given)
            case ast.Name(id=name) if name in self.functions:
                return calls_several(self.functions[name], env, self.functions)
        return False

    def _given_on(self, call: ast.Call) -> tuple[Argument, ...]:
        """What the callee of a wrapped checkpoint call gets: what the wrapper adds, too."""
        arguments = arguments_of(call, skip=1)
        match call.args[0]:
            case ast.Call(func=function) as wrapper if dotted(function).rpartition(".")[2] == "partial":
                arguments = (*arguments_of(wrapper, skip=1), *arguments)
            case ast.Call(func=ast.Name(id=name), args=[_]) if name in self.functions:
                inner = _call_of_parameter(self.functions[name])
                arguments = (*arguments, *(arguments_of(inner, skip=1) if inner else [UNPACKED]))
            case _:
                arguments = (*arguments, UNPACKED)
        return tuple(sorted(arguments, key=lambda argument: argument.name is not None))

    def _inline(
        self, statement: ast.If, calls: list[ast.Call], env: Env, direct: tuple[ModuleCall, ...]
    ) -> InlineBranch:
        inner_env = dict(env)
        for inner in statement.body:
            for node in walk(inner):
                if isinstance(node, ast.For):
                    bind_loop(node.target, node.iter, inner_env)
        guard = next((name for inner in statement.body if (name := guarded_name(inner))), None)
        other = statement.orelse
        return InlineBranch(
            method=self.method,
            span=span_of(statement),
            test=ast.unparse(statement.test),
            conditions=tuple(conditions(statement.test)),
            body=tuple(map(span_of, statement.body)),
            body_kinds=tuple(self._kind(inner, other) for inner in statement.body),
            orelse=tuple(map(span_of, other)),
            checkpoints=tuple(self._checkpoint(call, inner_env) for call in calls),
            direct=direct,
            guard=guard,
        )

    def _choice(self, choice: ast.IfExp, head: list[ast.Call], env: Env, calls: list[ModuleCall]) -> None:
        """Record an inline branch that is a conditional expression; `calls` are those of the whole statement."""
        other = {span_of(node) for node in walk(choice.orelse) if isinstance(node, ast.Call)}
        self.inlines.append(
            InlineBranch(
                method=self.method,
                span=span_of(choice),
                test=ast.unparse(choice.test),
                is_expression=True,
                conditions=tuple(conditions(choice.test)),
                body=(span_of(choice.body),),
                orelse=(span_of(choice.orelse),),
                checkpoints=tuple(self._checkpoint(call, env) for call in head),
                direct=tuple(call for call in calls if call.span in other),
            )
        )

    def _kind(self, statement: ast.stmt, other: list[ast.stmt]) -> BranchStatement:
        if self._checkpoints([statement]):
            return "checkpoint"
        if guarded_name(statement):
            return "guard"
        match statement:
            case ast.FunctionDef():
                return "function"
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None)) if is_past_state(name):
                return "past"
            case ast.Expr(value=ast.Call(func=function)) if "logger" in dotted(function) or "warn" in dotted(function):
                return "log"
        same = ast.dump(statement)
        return "mirrored" if any(ast.dump(twin) == same for twin in other) else "other"

    def _guards(self, function: ast.FunctionDef) -> None:
        """Fill in what only the whole method tells: `elif`s, and guards that later code relies on."""
        branches, elifs = elif_places(function)
        for position, inline in enumerate(self.inlines):
            place = (inline.span.line, inline.span.column)
            node = branches.get(place)
            if inline.test and node:
                self.inlines[position] = replace(
                    inline,
                    is_elif=place in elifs,
                    orelse_is_elif=any((inner.lineno, inner.col_offset) in elifs for inner in node.orelse[:1]),
                    guard_needed=inline.guard is not None and read_later(function, node, inline.guard),
                )


def _call_of_parameter(function: ast.FunctionDef) -> ast.Call | None:
    """Where a function calls its first parameter, as in `module(*inputs, mask)`; None where it is called otherwise."""
    names = [node.arg for node in function.args.args[:1]]
    calls = [node for node in walk(function) if isinstance(node, ast.Call) and dotted(node.func) in names]
    match calls:
        case [ast.Call(args=[ast.Starred(), *_]) as call]:
            return call
    return None


def _is_getattr(function: ast.expr) -> bool:
    return isinstance(function, ast.Call) and dotted(function.func) == "getattr"


def _uncalled(function: ast.expr) -> ast.expr:
    """`layer.forward` and `layer.__call__` mean the layer."""
    if isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
        return function.value
    return function
