"""Find where a method calls modules of `self`: in loops over stacks, by index, in closures and inline branches."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ckpt_surgery.codemods.facts.argument_names import is_past_state, is_table, may_carry_gradient
from ckpt_surgery.codemods.facts.checkpoint_helpers import (
    function_of,
    is_checkpoint,
    is_checkpoint_function,
    is_model_function,
    passed_on,
    refused_keywords,
    runs_what_it_is_given,
)
from ckpt_surgery.codemods.facts.file_facts import (
    DYNAMIC,
    ELEMENT,
    LOCAL,
    AttributePath,
    CarriedArgument,
    CheckpointCall,
    HandedOn,
    InlineBranch,
    ModuleCall,
    Wrapping,
)
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.guards import guarded_name, is_read_after, other_conditions
from ckpt_surgery.codemods.facts.interpreter import Function
from ckpt_surgery.codemods.facts.module_flow import NOTHING, ModuleFlow, Result, Value, calls_several
from ckpt_surgery.codemods.facts.syntax import (
    UNPACKED,
    Argument,
    Span,
    arguments_of,
    dotted,
    last_name,
    span_of,
    values_of,
    walk,
)

_BUILTINS = frozenset(dir(builtins))
_OWN_CALLS = ("forward", "__call__")
"""Methods that mean the module: `layer.forward(x)`."""


class MethodReader(ModuleFlow):
    """Reads one method: fills `calls`, `inlines` and `handed_on`.

    Args:
        function: the method.
        file: the file that it is in.
        direct: attributes whose own calls (`self.layer(...)`) are recorded, besides those of elements of containers.
        accessors: the values of methods that only return something.
        may_checkpoint: whether a call or a test of the method may be about checkpointing.
    """

    def __init__(
        self,
        function: ast.FunctionDef,
        file: FileSyntax,
        direct: Collection[str],
        accessors: Mapping[str, Value],
        *,
        may_checkpoint: bool,
    ) -> None:
        super().__init__(dict(accessors))
        self.calls: dict[Span, ModuleCall] = {}
        self.inlines: dict[int, InlineBranch] = {}
        self.handed_on: dict[HandedOn, None] = {}
        self._function = function
        self._parameters = frozenset(node.arg for node in function.args.args if node.arg != "self")
        self._direct = direct
        self._checkpoint_names = file.helpers.names
        self._may_checkpoint = may_checkpoint
        self._aliases = set(file.aliases)
        """Names bound to checkpoint functions: `run = checkpoint if self.gradient_checkpointing else call`."""
        self._assigned: dict[str, dict[int, ast.expr]] = {}
        """What is assigned to each name, by the identity of the value: a loop's body is followed twice."""
        self._functions: dict[str, Function] = {}
        """The method's local functions."""
        self._arguments: dict[Span, list[Value]] = {}
        self._branches: dict[int, list[ast.Call]] = {}
        """The checkpoint calls of each inline branch. Its nodes, like those below, are kept by identity."""
        self._in_branches: set[int] = set()
        """Checkpoint calls that are part of an inline branch."""
        self._checkpoints: dict[int, CheckpointCall] = {}
        self._elifs: set[int] = set()
        """The `if` statements that are written `elif`."""
        self._entered: set[int] = set()
        """Local functions that were read at a call."""

    def read(self) -> None:
        """Read the whole method."""
        self.follow(self._function.body)
        follows_all = any(_has_unknown_keyword(call.args) for call in self.calls.values())
        for place, call in self.calls.items():
            carried: list[CarriedArgument] = []
            for position, (argument, value) in enumerate(zip(call.args, self._arguments.get(place, ()), strict=False)):
                # if names do not tell which arguments carry gradient, all results count
                follows = follows_all or is_table(argument.name or "")
                paths = {result.path for result in value.all if follows or result.plain}
                inside = any(follows or result.plain for result in value.inside)
                if paths:
                    carried.append(CarriedArgument(position, tuple(sorted(paths)), in_container=inside))
            self.calls[place] = replace(call, carried=tuple(carried))
        for key, inline in self.inlines.items():
            direct = tuple(self.calls.get(call.span, call) for call in inline.direct)
            self.inlines[key] = replace(inline, direct=direct)

    # -- statements

    def define(self, node: Function | ast.ClassDef) -> None:
        """Keep a local function for its call."""
        if isinstance(node, Function):
            self._functions[node.name] = node

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Follow `target = value`, and note a name for a checkpoint function."""
        super().assign(target, value)
        if self._may_checkpoint and isinstance(target, ast.Name):
            self._assigned.setdefault(target.id, {})[id(value)] = value
            if is_checkpoint_function(value, self._checkpoint_names):
                self._aliases.add(target.id)

    def side(self, node: ast.If, truth: bool) -> bool:
        """Follow one side of an `if`; of an inline branch, only the calls of the other side count."""
        checkpoints = self._inlined(node, node.body, node.orelse)
        if not truth:
            chained = (part for part in node.orelse[:1] if isinstance(part, ast.If))
            self._elifs.update(id(part) for part in chained if part.col_offset == node.col_offset)
        before = self.calls
        self.calls = {}
        ended = super().side(node, truth)
        inner, self.calls = self.calls, before
        if not (checkpoints and truth):
            self.calls |= inner
        if checkpoints and not truth:
            self.inlines[id(node)] = self._branch(node, checkpoints, node.body, node.orelse, inner.values())
        return ended

    def choice(self, node: ast.IfExp) -> Value:
        """Follow a conditional expression; one that checkpoints is an inline branch."""
        checkpoints = self._inlined(node, [node.body], [node.orelse])
        value = super().choice(node)
        if checkpoints:
            other = {span_of(inner) for inner in walk(node.orelse) if isinstance(inner, ast.Call)}
            direct = [call for place, call in self.calls.items() if place in other]
            self.inlines[id(node)] = self._branch(node, checkpoints, [node.body], [node.orelse], direct)
        return value

    # -- calls

    def called(self, node: ast.Call, base: Value, callee: Value, values: Sequence[Value]) -> Value:
        """Record a call of an element of a container, of an attribute in `direct`, or of a checkpoint function."""
        if self._may_checkpoint and is_checkpoint(node.func, self._checkpoint_names):
            self._note_checkpoint(node)
            return NOTHING
        self._note_handed_on(node, values)
        if isinstance(node.func, ast.Name) and node.func.id in self._functions:
            self._enter_function(node, self._functions[node.func.id], values)
            return self._record(node, frozenset({(LOCAL, node.func.id)}), values)
        module = base if isinstance(node.func, ast.Attribute) and node.func.attr in _OWN_CALLS else callee
        is_plain = isinstance(node.func, ast.Name | ast.Attribute | ast.Subscript) or (
            isinstance(node.func, ast.Call) and dotted(node.func.func) == "getattr"
        )
        wanted = frozenset(path for path in module.paths if self._is_wanted(path)) if is_plain else None
        return self._record(node, wanted, values) if wanted else super().called(node, base, callee, values)

    def _is_wanted(self, path: AttributePath) -> bool:
        return bool(path) and (path[-1] in (ELEMENT, DYNAMIC) or (len(path) == 1 and path[0] in self._direct))

    def _record(self, node: ast.Call, paths: frozenset[AttributePath], values: Sequence[Value]) -> Value:
        place = span_of(node)
        new_values = values
        if not self.no_gradient:  # a module or parameter that is passed counts as a result
            new_values = [value._replace(results=value.results | value.itself()) for value in values]
        before = self._arguments.get(place, [NOTHING] * len(values))
        self._arguments[place] = [old | new for old, new in zip(before, new_values, strict=True)]
        self.calls[place] = ModuleCall(
            method=self._function.name,
            span=place,
            statement=span_of(self.statement),
            callee=ast.unparse(node.func),
            paths=tuple(sorted(paths)),
            args=arguments_of(node),
        )
        return Value(results=frozenset(Result(path, plain=True) for path in paths))

    def _note_handed_on(self, node: ast.Call, values: Sequence[Value]) -> None:
        """Record the modules among a call's arguments: the callee may checkpoint them."""
        if all(value is NOTHING for value in values):
            return
        name = dotted(node.func)
        pairs = list(zip(values_of(node), values, strict=True))
        plain = [value for part, value in pairs if isinstance(part, ast.Name | ast.Attribute | ast.Subscript)]
        reached = [path for value in plain for path in value.paths]
        elements = [(*path, ELEMENT) for path in reached if path and path[-1] != ELEMENT]
        if name in self._aliases or (self._may_checkpoint and runs_what_it_is_given(node, self._checkpoint_names)):
            paths = [path[:-1] if path[-1] in _OWN_CALLS else path for path in reached if path] + elements
            name = ""
        else:
            paths = [path for path in reached if self._is_wanted(path)]
            if isinstance(node.func, ast.Name) and name not in _BUILTINS:
                paths += elements  # whole stacks
            if not name:
                return
            if any(each.truth and self._is_about_checkpointing(each.test) for each in self.conditions):
                name = ""
        if paths:
            others = any(not isinstance(part, ast.Constant) and not value.paths for part, value in pairs)
            self.handed_on[HandedOn(name, tuple(sorted(paths)), others)] = None

    def _enter_function(self, node: ast.Call, function: Function, values: Sequence[Value]) -> None:
        """Read a local function at its call, with its parameters bound to what it is given."""
        if id(function) in self._entered:
            return
        self._entered.add(id(function))
        names = [*(parameter.arg for parameter in function.args.args)][: len(node.args)]
        names += [keyword.arg or "" for keyword in node.keywords]
        given = {name: value.without_results() for name, value in zip(names, values, strict=False)}
        self.enter(function.body, self.env | self.defaults(function.args) | given)

    # -- inline branches

    def _inlined(self, node: ast.If | ast.IfExp, body: Sequence[ast.AST], orelse: Sequence[ast.AST]) -> list[ast.Call]:
        """Return the checkpoint calls of an inline branch, except those that another branch has.

        It is one if its test is about checkpointing, or if its else side calls what its body checkpoints.
        """
        if id(node) not in self._branches:
            is_about = self._is_about_checkpointing(self._resolved(node.test))
            calls = self._checkpoints_in(body) if is_about or (orelse and self._may_checkpoint) else []
            if calls and not is_about:
                calls = self._called_directly(calls, body, orelse)
            self._branches[id(node)] = [call for call in calls if id(call) not in self._in_branches]
            self._in_branches.update(map(id, calls))
        return self._branches[id(node)]

    def _called_directly(
        self, calls: Sequence[ast.Call], body: Sequence[ast.AST], orelse: Sequence[ast.AST]
    ) -> list[ast.Call]:
        """Return the checkpoint calls, outside inner `if`s, whose modules the other side calls too."""
        inside = [inner for part in body for inner in walk(part)]
        conditional = self._checkpoints_in([inner for inner in inside if isinstance(inner, ast.If | ast.IfExp)])
        called = [inner.func for part in orelse for inner in walk(part) if isinstance(inner, ast.Call)]
        direct = set(map(_name_of_module, called)) - {"", *self._functions}
        shared: list[ast.Call] = []
        for call in calls:
            run = function_of(call)
            run = run.args[0] if isinstance(run, ast.Call) and run.args else run
            if run and call not in conditional and _name_of_module(run) in direct:
                shared.append(call)
        return shared

    def _checkpoints_in(self, parts: Iterable[ast.AST]) -> list[ast.Call]:
        calls = [inner for part in parts for inner in walk(part) if isinstance(inner, ast.Call)]
        return [c for c in calls if is_checkpoint(c.func, self._checkpoint_names) and function_of(c)]

    def _resolved(self, test: ast.expr) -> ast.expr:
        """Return what a test stands for if it is a name set only once: `on = self.gradient_checkpointing`."""
        match test:
            case ast.Name(id=name) if len(values := [*self._assigned.get(name, {}).values()]) == 1:
                return self._resolved(values[0])
            case ast.Call(func=ast.Name(id="bool"), args=[asked]):
                return self._resolved(asked)
        return test

    def _is_about_checkpointing(self, test: ast.expr) -> bool:
        return self._may_checkpoint and "checkpoint" in ast.unparse(test)

    def _branch(
        self,
        node: ast.If | ast.IfExp,
        checkpoints: Iterable[ast.Call],
        body: Sequence[ast.stmt | ast.expr],
        orelse: Sequence[ast.stmt | ast.expr],
        direct: Iterable[ModuleCall],
    ) -> InlineBranch:
        test, span = self._resolved(node.test), span_of(node)
        rest = [part for part in body if isinstance(part, ast.stmt) and not self._checkpoints_in([part])]
        guards = [(part, name) for part in rest if (name := guarded_name(part))]
        needed = guards and is_read_after(self._function, span, guards[0][1])
        return InlineBranch(
            method=self._function.name,
            span=span,
            checkpoints=tuple(self._checkpoints.get(id(call)) or self._checkpoint_here(call) for call in checkpoints),
            test=ast.unparse(test),
            conditions=tuple(other_conditions(test)) if self._is_about_checkpointing(test) else (),
            is_elif=id(node) in self._elifs,
            has_else=bool(orelse),
            else_is_elif=any(id(part) in self._elifs for part in orelse),
            is_expression=isinstance(node, ast.IfExp),
            does_more=any(_does_more(part, orelse) for part in rest),
            guards=tuple(body.index(part) for part, _ in guards if needed),
            direct=tuple(direct),
        )

    def _note_checkpoint(self, node: ast.Call) -> None:
        """Note what a checkpoint call runs. One outside inline branches is recorded as a branch without a test."""
        if function_of(node) is None:
            return
        checkpoint = self._checkpoints.setdefault(id(node), self._checkpoint_here(node))
        match node.args:
            case [ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="__call__" | "forward"), *_]:
                if name in self._parameters and name not in self.env:
                    return  # the method is a helper: its callers say what is checkpointed
        if id(node) not in self._in_branches:
            branch = InlineBranch(self._function.name, span_of(self.statement), (checkpoint,))
            self.inlines.setdefault(id(node), branch)

    def _checkpoint_here(self, node: ast.Call) -> CheckpointCall:
        callee = function_of(node)
        assert callee is not None, "it runs something"
        paths, wrapping = self._callable(callee)
        run = node.args[0] if node.args else callee
        local = self._functions.get(run.id) if isinstance(run, ast.Name) else None
        match callee:
            case ast.Call(func=ast.Name(id=name)) if name in self._functions and not paths:
                self._note_made(self._functions[name])
        return CheckpointCall(
            callee=ast.unparse(callee),
            paths=tuple(sorted(path for path in paths if path)),
            args=self._callee_arguments(node) if wrapping in ("partial", "custom") else arguments_of(node, skip=1),
            wrapping=wrapping,
            span=span_of(node),
            keywords=passed_on(keyword.arg for keyword in node.keywords),
            refused=refused_keywords(node, self._functions),
            uses_model_function=is_model_function(node.func),
            runs_several=self._runs_several(callee),
            body=span_of(local) if local else None,
        )

    def _callable(self, node: ast.expr) -> tuple[frozenset[AttributePath], Wrapping]:
        """Return the modules that a checkpoint function gets to run, and how they are wrapped."""
        match node:
            case ast.Attribute(value=value, attr="__call__" | "forward"):
                return self.value(value).paths, "plain"
            case ast.Call(func=function, args=[inner, *_]) if last_name(function) == "partial":
                return self._callable(inner)[0], "partial"
            case ast.Call(func=ast.Name(), args=[inner, *_]):
                return self._callable(inner)[0], "custom"
            case ast.Name(id=name) if name in self._functions:
                return frozenset(), "closure"
        return self.value(node.func if isinstance(node, ast.Call) else node).paths, "plain"

    def _note_made(self, function: Function) -> None:
        """Record the modules that run in the function that a local one makes and a checkpoint call gets."""
        before, self.calls = self.calls, {}
        inner = [node for node in walk(function) if isinstance(node, ast.FunctionDef)]
        self.enter([statement for node in inner for statement in node.body], dict(self.env))
        paths = {path for call in self.calls.values() for path in call.paths if path[0] != LOCAL}
        self.calls = before
        if paths:
            self.handed_on[HandedOn("", tuple(sorted(paths)))] = None

    def _runs_several(self, callee: ast.expr) -> bool:
        """Tell whether a local function, or one that it makes, is checkpointed and calls several modules."""
        match callee:
            case ast.Call(func=ast.Name(id=name), args=positional, keywords=keywords) if name != "partial":
                values = [self.value(node) for node in (*positional, *(keyword.value for keyword in keywords))]
                if sum(bool(value.paths) for value in values) > 1:
                    return True
                maker = self._functions.get(name)
                if maker is None:
                    return False
                names = [parameter.arg for parameter in maker.args.args][: len(positional)]
                names += [keyword.arg or "" for keyword in keywords]
                return calls_several(maker, self.env, self._functions, dict(zip(names, values, strict=False)))
            case ast.Name(id=name) if name in self._functions:
                return calls_several(self._functions[name], self.env, self._functions)
        return False

    def _callee_arguments(self, node: ast.Call) -> tuple[Argument, ...]:
        """Return the arguments that the callee of a wrapped checkpoint call gets, those of the wrapper included."""
        arguments = arguments_of(node, skip=1)
        match node.args[0]:
            case ast.Call(func=function) as wrapper if last_name(function) == "partial":
                arguments = (*arguments_of(wrapper, skip=1), *arguments)
            case ast.Call(func=ast.Name(id=name), args=[_]) if name in self._functions:
                maker = self._functions[name]
                first = [parameter.arg for parameter in maker.args.args[:1]]
                # the wrapper calls its first parameter, as in `module(*inputs, mask)`
                match [each for each in walk(maker) if isinstance(each, ast.Call) and dotted(each.func) in first]:
                    case [ast.Call(args=[ast.Starred(), *_]) as inner]:
                        arguments = (*arguments, *arguments_of(inner, skip=1))
                    case _:
                        arguments = (*arguments, UNPACKED)
            case _:
                arguments = (*arguments, UNPACKED)
        return tuple(sorted(arguments, key=lambda argument: argument.name is not None))


def _does_more(statement: ast.stmt, other: Iterable[ast.AST]) -> bool:
    """Tell whether a branch's statement does more than the other side, define functions, drop past state and log."""
    match statement:
        case ast.FunctionDef():
            return False
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None)) if is_past_state(name):
            return False
        case ast.Expr(value=ast.Call(func=function)) if "logger" in dotted(function) or "warn" in dotted(function):
            return False
    same = ast.dump(statement)
    return guarded_name(statement) is None and all(ast.dump(twin) != same for twin in other)


def _has_unknown_keyword(arguments: Iterable[Argument]) -> bool:
    """Tell whether a keyword argument may carry gradient, as far as its name shows, or unpacks some that may."""
    for argument in arguments:
        name = argument.name or "*"
        unpacked = name == "**" and not argument.text.endswith("kwargs")
        tensor = name[0] != "*" and argument.shape == "other"
        if unpacked or (tensor and may_carry_gradient(name) and not is_past_state(name)):
            return True
    return False


def _name_of_module(node: ast.expr) -> str:
    return dotted(node).removesuffix(".__call__").removesuffix(".forward")
