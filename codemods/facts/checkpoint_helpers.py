"""Recognise checkpoint functions by a file's names for them, and helpers that checkpoint what they are given.

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
"""Attributes of transformers' models that hold a checkpoint function, its mode included."""
_CURRIED = re.compile(r"checkpoint\((?:[^()]|\([^()]*\))*\)\s*\(")
_SIGNS = (FUNCTION.removeprefix("_"), "checkpoint.checkpoint", "checkpointing.checkpoint", "import checkpoint")
"""What a text that has a checkpoint function holds, unless it has one of the file's own names for it."""
ArgumentKeys: TypeAlias = frozenset[int | str]
"""Arguments of a call, by position and by name."""
_SPEAKS = re.compile(
    r"heckpoint(?:ing"
    r"|(?<!(?:best|from|last|load|move|save|test)_checkpoint)(?<!trained_checkpoint)(?<!ModelCheckpoint)"
    r"(?!s|io|IO|[Ee]ngine|Config|able|er"
    r"|_(?:io|path|dir|file|name|arg|conf|state|engine|callback))\w*\("
    r"|\.checkpoint|(?<=utils\.checkpoint)|(?<=import checkpoint)\b|(?<=[,\s]\scheckpoint),?$)",
    re.M,
)
"""`checkpoint_path` alone does not tell, nor do calls about weights.

All begins with one literal, which is what makes the search fast.
"""
FIRST_ARGUMENT: ArgumentKeys = frozenset({0, "function"})
"""Where torch's checkpoint function takes what it runs."""
TORCH_OPTIONS = frozenset(
    {"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}
)
"""The keywords that torch's checkpoint function keeps for itself."""


def speaks_of_checkpointing(text: str) -> bool:
    """Tell whether a file may checkpoint something, or switch it."""
    return _SPEAKS.search(text) is not None


def checkpoint_names(source: str) -> Mapping[str, str]:
    """Return the names that a file has for checkpoint functions, each with the module of the function.

    The import statements are looked for in the text: a walk over the tree takes a fourth of the time of reading it.
    """
    names: dict[str, str] = {}
    wanted = "checkpoint" in source and ("torch.utils" in source or "deepspeed" in source)
    for text in _IMPORTS.findall(source) if wanted else ():
        if "torch" not in text and "deepspeed" not in text:
            continue
        try:
            statements = ast.parse(text).body
        except SyntaxError:  # the text was no statement: a sentence of a docstring
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
    """Write `checkpoint(**options)(function)(...)`, which torch takes from 2.14, as `checkpoint(function, ...)`."""
    return _Uncurrying(checkpoint_names(source)).visit(tree) if _CURRIED.search(source) else tree


class _Uncurrying(ast.NodeTransformer):
    """Replaces curried calls of the checkpoint functions that have these names, each at its own place."""

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
    """Tell whether a call's function is a checkpoint function; `names` are those that the file has for one."""
    if is_given(function):
        return True
    name = dotted(function)
    return name in names or name.endswith(("checkpoint.checkpoint", "checkpointing.checkpoint"))


def function_of(call: ast.Call) -> ast.expr | None:
    """Return what a checkpoint call runs; None where it has options alone, and makes a function that checkpoints."""
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "function")]
    return given[0] if given else None


def passed_on(names: Iterable[str | None]) -> tuple[str, ...]:
    """Return the names, among those of a checkpoint call's arguments, of what it passes on by keyword."""
    own = {None, "", "*", "**", *TORCH_OPTIONS, *FIRST_ARGUMENT}
    return tuple(name for name in names if name is not None and name not in own)


def refused_keywords(call: ast.Call, functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Return what a checkpoint call passes by keyword that a local function, or one made by it, has no parameter for.

    `def custom_forward(*inputs): return module(*inputs)` takes none.
    """
    run: list[ast.AST] = []
    match function_of(call):
        case ast.Name(id=name) if name in functions:
            run = [functions[name]]
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            run = walk(functions[name])[1:]
    taking = [node.args for node in run if isinstance(node, Function | ast.Lambda)]
    if not taking or any(arguments.kwarg for arguments in taking):
        return ()
    taken = {node.arg for arguments in taking for node in (*arguments.args, *arguments.kwonlyargs)}
    return tuple(name for name in passed_on(keyword.arg for keyword in call.keywords) if name not in taken)


def is_given(function: ast.expr) -> bool:
    """Tell whether a function is the one that transformers gives a module when it switches checkpointing on."""
    return isinstance(function, ast.Attribute) and function.attr in CHECKPOINT_ATTRIBUTES


def is_checkpoint_function(value: ast.expr, names: Collection[str], makers: Collection[str] = ()) -> bool:
    """Tell whether a value is, or may be, a checkpoint function, or one with some arguments filled in.

    `makers` are functions that return one.
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
    """Tell whether a call checkpoints the modules that it is given in a form of its own.

    `checkpoint_sequential(self.layers, 2, x)`, `partial(checkpoint, layer)`, `OffloadedCheckpoint.apply(layer, x)`.
    """
    owner, _, name = dotted(call.func).rpartition(".")
    if name == "apply":
        return owner.rpartition(".")[2][:1].isupper()
    return name == "checkpoint_sequential" or (name == "partial" and is_checkpoint_function(call, names))


@dataclass(slots=True)
class CheckpointHelpers:
    """The helpers of one file. `names` are its names for a checkpoint function."""

    names: frozenset[str]
    functions: dict[str, ArgumentKeys] = field(default_factory=dict)
    """Functions that checkpoint parameters, and which."""
    makers: set[str] = field(default_factory=set)
    """Functions that return a checkpoint function."""

    def may_be_in(self, text: str) -> bool:
        """Tell whether a function's text is worth reading: most of them name no checkpoint function."""
        return any(sign in text for sign in (*_SIGNS, *self.names, *self.functions, *self.makers))

    def read(self, functions: Iterable[ast.FunctionDef]) -> None:
        """Find the helpers among a file's functions."""
        for function in functions:
            if handed := self._hands_on(function):
                self.functions[function.name] = handed
            elif any(self._is_function(node.value) for node in walk(function) if isinstance(node, ast.Return)):
                self.makers.add(function.name)

    def aliases(self, statements: Iterable[ast.stmt]) -> frozenset[str]:
        """Return the names that a module binds to checkpoint functions, as in `remat = partial(checkpoint, ...)`."""
        assigned = [node for node in statements if isinstance(node, ast.Assign) and self._is_function(node.value)]
        return frozenset(target.id for node in assigned for target in node.targets if isinstance(target, ast.Name))

    def of_class(self, methods: Iterable[ast.FunctionDef]) -> Iterator[tuple[str, ArgumentKeys]]:
        """Yield the methods and attributes of a class that checkpoint what they are given, and what of it."""
        for method in methods:
            if handed := self._hands_on(method):
                yield method.name, handed
            for node in walk(method):
                match node:
                    case (
                        ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value)
                        | ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), value=value)
                    ) if self._is_function(value):
                        yield name, FIRST_ARGUMENT

    def _hands_on(self, function: ast.FunctionDef) -> ArgumentKeys:
        """Return the parameters that a function gives to a checkpoint function to run."""
        names = {*self.names, *self.functions}
        arguments = function.args
        positional = [node.arg for node in (*arguments.posonlyargs, *arguments.args) if node.arg != "self"]
        calls = _Handed({*positional, *(node.arg for node in arguments.kwonlyargs)}, function).calls
        handed = _NONE.union(*(first for call, first in calls if is_checkpoint(call.func, names)))
        return handed | {positional.index(name) for name in handed if name in positional}

    def _is_function(self, value: ast.expr | None) -> bool:
        return value is not None and is_checkpoint_function(value, {*self.names, *self.functions}, self.makers)


def handed_to(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the functions that get the first parameter of one, or parts of it, as their first argument of several."""
    first = {node.arg for node in (*function.args.posonlyargs, *function.args.args)[:1]}
    for call, handed in _Handed(first, function).calls:
        name = dotted(call.func)
        if handed and name and len(call.args) + len(call.keywords) > 1:
            yield name


_NONE: frozenset[str] = frozenset()


class _Handed(Interpreter[frozenset[str]]):
    """Follows parameters of a function, and parts of them, to the calls that get one as their first argument.

    A value tells which parameters it is, or runs.
    """

    nothing = _NONE

    def __init__(self, parameters: Iterable[str], function: ast.FunctionDef) -> None:
        super().__init__({name: frozenset({name}) for name in parameters})
        self.calls: list[tuple[ast.Call, frozenset[str]]] = []
        self.follow(function.body)

    def join(self, values: Sequence[frozenset[str]]) -> frozenset[str]:
        return _NONE.union(*values)

    def compute(self, values: Sequence[frozenset[str]]) -> frozenset[str]:
        """Return nothing: what is computed is no module."""
        return _NONE

    def attribute(self, node: ast.Attribute, base: frozenset[str]) -> frozenset[str]:
        """Return the layer for `layer.forward`."""
        return base

    def function(self, node: ast.Lambda) -> frozenset[str]:
        """Return what a lambda calls: it runs that."""
        self.value(node.body)
        return self._called_in(node)

    def define(self, node: Function | ast.ClassDef) -> None:
        """Bind an inner function to what it calls: it runs that."""
        self.enter(node.body, dict(self.env))
        self.env[node.name] = self._called_in(node)

    def _called_in(self, node: ast.AST) -> frozenset[str]:
        callees = (inner.func for inner in walk(node) if isinstance(inner, ast.Call))
        return self.join([self.env.get(callee.id, _NONE) for callee in callees if isinstance(callee, ast.Name)])

    def call(self, node: ast.Call) -> frozenset[str]:
        """Note the call; what it makes of a module runs it, as in `partial(layer, x)`."""
        owner = self.value(node.func) if isinstance(node.func, ast.Attribute) else _NONE
        values = [self.value(argument) for argument in node.args]
        for keyword in node.keywords:
            self.value(keyword.value)
        self.calls.append((node, values[0] if values else _NONE))
        handed = [value for value, part in zip(values, node.args, strict=True) if isinstance(part, ast.Name)]
        return self.join([owner, *handed])  # `fn.to(dtype)` is fn again
