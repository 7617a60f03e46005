"""Recognise checkpoint functions by a file's names for them, and helpers that checkpoint their arguments.

`def run(block, x): return checkpoint(block, x)`, `self._checkpoint_fn = partial(checkpoint, use_reentrant=False)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ckpt_surgery.codemods.facts.interpreter import Function, Interpreter
from ckpt_surgery.codemods.facts.syntax import dotted, last_name, walk
from ckpt_surgery.model_patches.release_names import FUNCTION

TORCH = "torch.utils.checkpoint"
_MODULES = frozenset({TORCH, "deepspeed.checkpointing"})
_IMPORTS = re.compile(r"^[ \t]*((?:from[ \t]+(?:torch\.utils|deepspeed)\b|import[ \t])[^\n;#(]*(?:\([^)]*\))?)", re.M)
CHECKPOINT_ATTRIBUTES = frozenset({FUNCTION, FUNCTION.removeprefix("_")})
"""Attributes of transformers' models that hold a checkpoint function with its mode set."""
_CURRIED = re.compile(r"checkpoint\((?:[^()]|\([^()]*\))*\)\s*\(")
_SIGNS = (FUNCTION.removeprefix("_"), "checkpoint.checkpoint", "checkpointing.checkpoint", "import checkpoint")
"""One of these is in every text with a checkpoint function, unless it uses a name of the file's own for it."""
ArgumentKeys: TypeAlias = frozenset[int | str]
"""Arguments of a call, each by its position, its name or both."""
_ABOUT_CHECKPOINTING = re.compile(
    r"heckpoint(?:ing"
    r"|(?<!(?:best|from|last|load|move|save|test)_checkpoint)(?<!trained_checkpoint)(?<!ModelCheckpoint)"
    r"(?!s|io|IO|[Ee]ngine|Config|able|er"
    r"|_(?:io|path|dir|file|name|arg|conf|state|engine|callback))\w*\("
    r"|\.checkpoint|(?<=utils\.checkpoint)|(?<=import checkpoint)\b|(?<=[,\s]\scheckpoint),?$)",
    re.M,
)
"""Matches neither `checkpoint_path` alone nor calls about saved weights.

Every alternative begins with the same literal, which makes the search fast.
"""
FIRST_ARGUMENT: ArgumentKeys = frozenset({0, "function"})
"""The argument of torch's checkpoint function that it runs."""
TORCH_OPTIONS = frozenset(
    {"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}
)
"""The keywords that torch's checkpoint function keeps for itself."""


def speaks_of_checkpointing(text: str) -> bool:
    """Tell whether a file may checkpoint something, or switch it."""
    return _ABOUT_CHECKPOINTING.search(text) is not None


def checkpoint_names(source: str) -> Mapping[str, str]:
    """Return the names that a file has for checkpoint functions, each with the module of the function.

    The import statements are searched for in the text: to walk the tree takes a quarter of the time to read a file.
    """
    names: dict[str, str] = {}
    wanted = "checkpoint" in source and ("torch.utils" in source or "deepspeed" in source)
    for text in _IMPORTS.findall(source) if wanted else ():
        if "torch" not in text and "deepspeed" not in text:
            continue
        try:
            statements = ast.parse(text).body
        except SyntaxError:  # not a statement: a sentence of a docstring
            continue
        for node in statements:
            if isinstance(node, ast.Import):
                names |= {f"{alias.asname or alias.name}.checkpoint": alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module in _MODULES:
                names |= {
                    alias.asname or alias.name: node.module for alias in node.names if alias.name == "checkpoint"
                }
            elif isinstance(node, ast.ImportFrom):
                modules = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                names |= {f"{name}.checkpoint": module for name, module in modules.items()}
    return {name: module for name, module in names.items() if module in _MODULES}


def without_currying(tree: ast.Module, source: str) -> ast.Module:
    """Rewrite `checkpoint(**options)(function)(...)`, new in torch 2.14, as `checkpoint(function, ..., **options)`."""
    return _Uncurrying(checkpoint_names(source)).visit(tree) if _CURRIED.search(source) else tree


class _Uncurrying(ast.NodeTransformer):
    """Replaces curried calls of the checkpoint functions with these names, in place."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Call(func=ast.Call(func=checkpoint, args=[], keywords=options), args=[run], keywords=[]) if (
                is_checkpoint(checkpoint, self._names)
            ):
                call = ast.Call(checkpoint, [run, *node.args], [*node.keywords, *options])
                node = ast.copy_location(call, node)
        return self.generic_visit(node)


def is_checkpoint(function: ast.expr, names: Collection[str]) -> bool:
    """Tell whether a callee is a checkpoint function; `names` are the file's names for one."""
    if is_model_function(function):
        return True
    name = dotted(function)
    return name in names or name.endswith(("checkpoint.checkpoint", "checkpointing.checkpoint"))


def function_of(call: ast.Call) -> ast.expr | None:
    """Return what a checkpoint call runs; None if it has only options, and returns a function that checkpoints."""
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "function")]
    return given[0] if given else None


def passed_on(names: Iterable[str | None]) -> tuple[str, ...]:
    """Return those names of a checkpoint call's arguments that it passes on by keyword to what it runs."""
    own = {None, "", "*", "**", *TORCH_OPTIONS, *FIRST_ARGUMENT}
    return tuple(name for name in names if name is not None and name not in own)


def refused_keywords(call: ast.Call, functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Return the keywords of a checkpoint call that the local function it runs, or one made by that, does not take.

    `def custom_forward(*inputs): return module(*inputs)` takes no keywords.
    """
    run: list[ast.AST] = []
    match function_of(call):
        case ast.Name(id=name) if name in functions:
            run = [functions[name]]
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            run = walk(functions[name])[1:]
    signatures = [node.args for node in run if isinstance(node, Function | ast.Lambda)]
    if not signatures or any(signature.kwarg for signature in signatures):
        return ()
    accepted = {node.arg for signature in signatures for node in (*signature.args, *signature.kwonlyargs)}
    return tuple(name for name in passed_on(keyword.arg for keyword in call.keywords) if name not in accepted)


def is_model_function(function: ast.expr) -> bool:
    """Tell whether a callee is the function that transformers sets on a module when it switches checkpointing on."""
    return isinstance(function, ast.Attribute) and function.attr in CHECKPOINT_ATTRIBUTES


def is_checkpoint_function(value: ast.expr, names: Collection[str], makers: Collection[str] = ()) -> bool:
    """Tell whether a value is, or may be, a checkpoint function, perhaps with some arguments filled in.

    `makers` are names of functions that return one.
    """
    match value:
        case ast.Call(func=function, args=[inner, *_]) if last_name(function) == "partial":
            return is_checkpoint_function(inner, names, makers)
        case ast.Call(func=ast.Name(id=name)):
            return name in makers
        case ast.BoolOp(values=values):
            return any(is_checkpoint_function(inner, names, makers) for inner in values)
        case ast.IfExp(body=body, orelse=orelse):
            return any(is_checkpoint_function(inner, names, makers) for inner in (body, orelse))
        case ast.Name() | ast.Attribute():
            return is_checkpoint(value, names)
    return False


def runs_what_it_is_given(call: ast.Call, names: Collection[str]) -> bool:
    """Tell whether a call that does not look like `checkpoint(...)` checkpoints the modules it is given.

    `checkpoint_sequential(self.layers, 2, x)`, `partial(checkpoint, layer)`, `OffloadedCheckpoint.apply(layer, x)`.
    """
    owner, _, name = dotted(call.func).rpartition(".")
    if name == "apply":
        return owner.rpartition(".")[2][:1].isupper()
    return name == "checkpoint_sequential" or (name == "partial" and is_checkpoint_function(call, names))


@dataclass(slots=True)
class CheckpointHelpers:
    """The helpers of one file. `names` are the file's names for a checkpoint function."""

    names: frozenset[str]
    functions: dict[str, ArgumentKeys] = field(default_factory=dict)
    """Functions that checkpoint some of their parameters, and which ones."""
    makers: set[str] = field(default_factory=set)
    """Functions that return a checkpoint function."""

    def may_be_in(self, text: str) -> bool:
        """Tell whether a function's text is worth reading: most of them name no checkpoint function."""
        return any(sign in text for sign in (*_SIGNS, *self.names, *self.functions, *self.makers))

    def read(self, functions: Iterable[ast.FunctionDef]) -> None:
        """Find the helpers among a file's functions."""
        for function in functions:
            if handed := self._checkpointed_parameters(function):
                self.functions[function.name] = handed
            elif any(self._is_function(node.value) for node in walk(function) if isinstance(node, ast.Return)):
                self.makers.add(function.name)

    def aliases(self, statements: Iterable[ast.stmt]) -> frozenset[str]:
        """Return the names that a module binds to checkpoint functions, as in `remat = partial(checkpoint, ...)`."""
        assigned = [node for node in statements if isinstance(node, ast.Assign) and self._is_function(node.value)]
        return frozenset(target.id for node in assigned for target in node.targets if isinstance(target, ast.Name))

    def of_class(self, methods: Iterable[ast.FunctionDef]) -> Iterator[tuple[str, ArgumentKeys]]:
        """Yield the methods and attributes of a class that checkpoint arguments, and which ones."""
        for method in methods:
            if handed := self._checkpointed_parameters(method):
                yield method.name, handed
            for node in walk(method):
                match node:
                    case (
                        ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value)
                        | ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), value=value)
                    ) if self._is_function(value):
                        yield name, FIRST_ARGUMENT

    def _checkpointed_parameters(self, function: ast.FunctionDef) -> ArgumentKeys:
        """Return the parameters that a function passes to a checkpoint function to run."""
        names = {*self.names, *self.functions}
        arguments = function.args
        positional = [node.arg for node in (*arguments.posonlyargs, *arguments.args) if node.arg != "self"]
        calls = _ParameterFlow({*positional, *(node.arg for node in arguments.kwonlyargs)}, function).calls
        handed = _NONE.union(*(first for call, first in calls if is_checkpoint(call.func, names)))
        return handed | {positional.index(name) for name in handed if name in positional}

    def _is_function(self, value: ast.expr | None) -> bool:
        return value is not None and is_checkpoint_function(value, {*self.names, *self.functions}, self.makers)


def handed_to(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the callees to which a function passes its first parameter, or a part of it, with other arguments."""
    first = {node.arg for node in (*function.args.posonlyargs, *function.args.args)[:1]}
    for call, handed in _ParameterFlow(first, function).calls:
        name = dotted(call.func)
        if handed and name and len(call.args) + len(call.keywords) > 1:
            yield name


_NONE: frozenset[str] = frozenset()


class _ParameterFlow(Interpreter[frozenset[str]]):
    """Follows parameters of a function, and parts of them, to the calls that get one as their first argument.

    A value is the set of parameters that it may be, or that it runs.
    """

    nothing = _NONE

    def __init__(self, parameters: Iterable[str], function: ast.FunctionDef) -> None:
        super().__init__({name: frozenset({name}) for name in parameters})
        self.calls: list[tuple[ast.Call, frozenset[str]]] = []
        self.follow(function.body)

    def join(self, values: Sequence[frozenset[str]]) -> frozenset[str]:
        return _NONE.union(*values)

    def compute(self, values: Sequence[frozenset[str]]) -> frozenset[str]:
        """Return nothing: a computed value is not a module."""
        return _NONE

    def attribute(self, node: ast.Attribute, base: frozenset[str]) -> frozenset[str]:
        """Return the layer for `layer.forward`."""
        return base

    def function(self, node: ast.Lambda) -> frozenset[str]:
        """Return the parameters that a lambda calls."""
        self.value(node.body)
        return self._called_in(node)

    def define(self, node: Function | ast.ClassDef) -> None:
        """Bind an inner function to the parameters that it calls."""
        self.enter(node.body, dict(self.env))
        self.env[node.name] = self._called_in(node)

    def _called_in(self, node: ast.AST) -> frozenset[str]:
        callees = (inner.func for inner in walk(node) if isinstance(inner, ast.Call))
        return self.join([self.env.get(callee.id, _NONE) for callee in callees if isinstance(callee, ast.Name)])

    def call(self, node: ast.Call) -> frozenset[str]:
        """Note the call. Its result runs the modules it is given, as in `partial(layer, x)`."""
        owner = self.value(node.func) if isinstance(node.func, ast.Attribute) else _NONE
        values = [self.value(argument) for argument in node.args]
        for keyword in node.keywords:
            self.value(keyword.value)
        self.calls.append((node, values[0] if values else _NONE))
        handed = [value for value, part in zip(values, node.args, strict=True) if isinstance(part, ast.Name)]
        return self.join([owner, *handed])  # `fn.to(dtype)` is still `fn`
