"""Find where a script switches checkpointing on without effect, by what it does with the model or the option."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.script_facts import Spot
from ckpt_surgery.codemods.facts.syntax import dotted, passes_false, values_of, walk
from ckpt_surgery.codemods.scripts.names import (
    Names,
    ScriptNode,
    is_accelerator,
    keywords,
    names_of,
    parameters,
    tail,
    words,
)
from ckpt_surgery.model_patches.release_names import SWITCH_ON, TRAINING_SWITCH

_SELF_RETURNING = words("to cuda cpu half float bfloat16 double requires_grad_ compile eval")
"""Methods that return the model they are called on."""
_KEEP_MODE = words("get_peft_model prepare_model_for_kbit_training prepare compile")
"""Functions that return the model they are given, or a wrapper, without changing its mode."""
_ONLY_LOOK = words(
    "print pprint len isinstance hasattr getattr id type info debug warning summary watch save unwrap_model"
    " init_trackers dump dumps"
)
"""Functions that only look at their arguments."""
_MAX_PASSES = 3
"""Objects are followed through this many calls of functions of the file."""
_TARGETS = re.compile(r"[(), ]+")
_LOOPS = (ast.For, ast.While)
_LEAVES = (ast.Break, ast.Return, ast.Raise)
_TRAINS_OTHERWISE = re.compile(r"\.training\s*=|\bset_train|\.train[),]|[\"']train[\"']\)\(")
_ONE_PROCESS = re.compile(r"istributed|DDP|world|rank|isinstance|module", re.I)
_OPTIONS = tuple(f"--{name.replace('_', sign)}" for name in TRAINING_SWITCH for sign in "_-")
_ADDS_OPTION = re.compile(rf"[\"'](?:{'|'.join(_OPTIONS)})[\"']|HfArgumentParser\(")


class NoEffect(StrEnum):
    """The reasons why nothing is checkpointed."""

    EVALUATION = "the model never enters training mode"
    LEFT_TRAINING = "the model leaves training mode inside the loop and never comes back"
    WRAPPED = "DistributedDataParallel has no such method"
    PREPARED = "what accelerate prepared may be a wrapper of DistributedDataParallel"
    UNREAD = "nothing reads the option"


class IneffectiveSwitch(NamedTuple):
    """A switch or option without effect: its text, the model, and the call that is the cause, with its line."""

    spot: Spot
    reason: NoEffect
    text: str
    model: str = ""
    cause: str = ""
    line: int = 0


def _switches(file: FileSyntax) -> Iterator[IneffectiveSwitch]:
    names = names_of(file.tree)
    if _ADDS_OPTION.search(file.source) and file.mentions("backward(", "Trainer("):
        yield from _unread(names)
    for place, call in names.calls:
        match call.func:
            case ast.Attribute(value=owner, attr=name) if name in SWITCH_ON and (model := dotted(owner)):
                switch = _Switch(names, place, call, model)
                cause = switch.wrapped()
                if not cause and switch.values and not _TRAINS_OTHERWISE.search(file.source):
                    cause = switch.evaluated()
                if cause:
                    reason, shown = cause
                    text, why = f"{ast.unparse(call.func)}()", dotted(shown.func) or tail(shown.func)
                    yield IneffectiveSwitch(place.spot(call), reason, text, model, why, shown.lineno)


class _Switch:
    """A call that switches the checkpointing of a model on, and what the script does with that model."""

    def __init__(self, names: Names, place: ScriptNode, call: ast.Call, model: str) -> None:
        self.names = names
        self.place = place
        self.call = call
        self.model = model
        self.values = [
            (place, value, name == model)  # an attribute of `self` may be set anywhere in the class
            for name, assigned in names.assigned.items()
            if model in name and model in _TARGETS.split(name)
            for place, value in assigned
            if self.is_beside(place)
        ]

    def is_beside(self, place: ScriptNode) -> bool:
        """Tell whether a node is in the same function as the switch; for an attribute of `self`, in the same class."""
        if self.model.startswith("self."):
            return place.scope.rpartition(".")[0] == self.place.scope.rpartition(".")[0] != ""
        return place.scope == self.place.scope

    def wrapped(self) -> tuple[NoEffect, ast.Call] | None:
        """Find a call before the switch that surely wraps the model in DistributedDataParallel, or prepares it."""
        before = [value for value in self.values if value[1].lineno < self.call.lineno]
        match max(before, key=lambda value: value[1].lineno, default=None):
            case (place, ast.Call(func=func) as last, _) if not place.conditional and not any(
                _ONE_PROCESS.search(ast.unparse(test)) for test in self.place.tests
            ):
                if self.names.is_wrapper(func):
                    return NoEffect.WRAPPED, last
                plugin = any(tail(call.func).endswith("Plugin") for _, call in self.names.calls)  # DeepSpeed or FSDP
                is_prepare = isinstance(func, ast.Attribute) and func.attr == "prepare" and is_accelerator(func.value)
                if is_prepare and not plugin:
                    return NoEffect.PREPARED, last
        return None

    def evaluated(self) -> tuple[NoEffect, ast.Call] | None:
        """Find the call because of which a model of transformers trains in evaluation mode."""
        names, model, here = self.names, self.model, self.place.scope
        beside = [(place, call) for place, call in names.calls if self.is_beside(place)]
        returned = [
            node.value for place in names.places if place.scope == here and isinstance(node := place.node, ast.Return)
        ]
        returned = [value for value in map(_source, filter(None, returned)) if dotted(value) == model]
        callers = {
            name: place.scope
            for name, assigned in (names.assigned.items() if returned else ())
            for place, value in assigned
            if isinstance(value, ast.Call) and dotted(value.func) == here
        }
        scopes = {here, *callers.values(), *(place.scope for place, _ in beside)}
        own_class = names.classes.get(here.rpartition(".")[0]) if model.startswith("self.") else None
        backward = [(place.scope, call.lineno) for place, call in names.calls if tail(call.func) == "backward"]
        values = [value for _, value, is_alone in self.values if is_alone]
        sources = [source for value in values if dotted(source := _source(value)) != model]
        training = [place for place, call in names.calls if tail(call.func) == "train" and not passes_false(call)]
        adapted = any(tail(call.func) in ("get_peft_model", "add_adapter") for _, call in names.calls)
        freezing = [call for _, call in beside if tail(call.func) == "requires_grad_" and passes_false(call)]
        frozen = any(_owner(call) == model for call in freezing)
        origins = [names.origin(source.func) if isinstance(source, ast.Call) else "" for source in sources]
        if (
            not any(scope in scopes for scope, _ in backward)
            or not sources
            or not all(origin.startswith("transformers.") for origin in origins)
            or not all(map(self.is_beside, training))
            or (frozen and not adapted)
            or (own_class and names.foreign_bases(own_class))
            or _handed_on(names, {model, *callers, *(("self",) if own_class else ())}, map(id, returned))
        ):
            return None
        if not training:
            last = max(line if scope == here else math.inf for scope, line in backward if scope in scopes)
            stops = [
                call for place, call in beside if self._stops(call) and place.scope == here and not place.conditional
            ]
            causes = [call for call in stops if call.lineno < last]
            causes += [
                call
                for call in (node for value in values for node in walk(value) if isinstance(node, ast.Call))
                if tail(call.func) == "eval" or (call in sources and tail(call.func) == "from_pretrained")
            ]
            if causes:
                return NoEffect.EVALUATION, causes[0]
        return self._left_training()

    def _left_training(self) -> tuple[NoEffect, ast.Call] | None:
        """Find what takes the model out of training mode inside a loop that never brings it back."""
        for loop in (place.node for place in self.names.places if self.is_beside(place)):
            calls = [node for node in walk(loop) if isinstance(node, ast.Call)] if isinstance(loop, _LOOPS) else []
            tails = {tail(call.func) for call in calls}
            if "backward" not in tails or any(tail(each.func) == "train" and not passes_false(each) for each in calls):
                continue
            inside = [getattr(node, part, None) for node in walk(loop) for part in ("body", "orelse")]
            for block in (statements for statements in inside if isinstance(statements, list)):
                for number, statement in enumerate(block):
                    leaves = any(isinstance(node, _LEAVES) for later in block[number:] for node in walk(later))
                    match statement:
                        case ast.Expr(value=ast.Call() as call) if self._stops(call) and not leaves:
                            return NoEffect.LEFT_TRAINING, call
        return None

    def _stops(self, call: ast.Call) -> bool:
        """Tell whether a call takes the model out of training mode: `model.eval()`, `model.train(False)`."""
        name = tail(call.func)
        return _owner(call) == self.model and (name == "eval" or (name == "train" and passes_false(call)))


def _source(value: ast.expr) -> ast.expr:
    """Return the expression that a model comes from: `Model()` of `Model().eval()`."""
    match value:
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _SELF_RETURNING:
            return _source(owner)
        case ast.Call(func=func, args=[first, *_]) if tail(func) in _KEEP_MODE:
            return _source(first)
    return value


def _owner(call: ast.Call) -> str:
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _unread(names: Names) -> Iterator[IneffectiveSwitch]:
    """Yield the options of parsers and dataclasses that would switch checkpointing on, but that nothing reads."""
    nodes = walk(names.tree)
    declared: set[int] = set()
    options: list[tuple[ScriptNode, ast.expr, str, str]] = []
    for place in names.places:
        match place.node:
            case ast.Call(func=func, args=[ast.Constant(value=str(flag)) as first, *_]) as call:
                if tail(func) == "add_argument" and flag.lstrip("-").replace("-", "_") in TRAINING_SWITCH:
                    declared.add(id(first))
                    if "dest" not in keywords(call):
                        options.append((place, call, flag, ""))
            case ast.AnnAssign(target=ast.Name(id=name) as target) if name in TRAINING_SWITCH:
                cls = names.classes.get(place.prefix.rstrip("."))
                declared.add(id(target))
                if cls and not names.foreign_bases(cls):
                    options.append((place, target, name, cls.name))
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in declared}
    read |= {str(node.value) for node in nodes if isinstance(node, ast.Constant) and id(node) not in declared}
    unread = [option for option in options if option[2].lstrip("-").replace("-", "_") not in read]
    returned = [id(place.node.value) for place in names.places if isinstance(place.node, ast.Return)] if unread else []
    for place, node, text, cls_name in unread:
        parsed = set(_parsed(names, cls_name))
        if parsed and not _handed_on(names, parsed, returned):
            yield IneffectiveSwitch(place.spot(node), NoEffect.UNREAD, text)


def _parsed(names: Names, cls: str) -> Iterator[str]:
    """Yield the names that hold the parsed command line: the options, or an instance of the dataclass `cls`."""
    parser_arguments = [
        ast.unparse(call.args[0]) for _, call in names.calls if tail(call.func) == "HfArgumentParser" and call.args
    ]
    classes = [name for text in parser_arguments for name in _TARGETS.split(text) if name]
    for name, assigned in names.assigned.items():
        for _, value in assigned:
            called = value.value if isinstance(value, ast.Subscript) else value
            made = tail(called.func) if isinstance(called, ast.Call) else ""
            if made == "parse_args" and not cls:
                yield name
            elif made == "parse_args_into_dataclasses" and len(parser_arguments) == 1 and cls in classes:
                targets = [target for target in _TARGETS.split(name) if target]
                if len(targets) == len(classes):
                    yield targets[classes.index(cls)]


def _handed_on(names: Names, objects: Collection[str], known: Iterable[int] = ()) -> bool:
    """Tell whether any object of these names is passed to code outside the file, which may do anything with it.

    `known` are the identities of harmless nodes. Functions of the file are followed by the names of their parameters.
    """
    objects, followed = set(objects), set[str]()
    nodes = walk(names.tree)
    harmless = {*known, *(id(node.value) for node in nodes if isinstance(node, ast.FormattedValue))}
    harmless |= {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr != "__dict__"}
    loaded = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)]
    for _ in range(_MAX_PASSES):
        for _, call in names.calls:
            function = names.functions.get(dotted(call.func))
            harmless.add(id(call.func))
            if function:
                for name, value in (*zip(parameters(function), call.args, strict=False), *keywords(call).items()):
                    if dotted(value) in objects and name in parameters(function):
                        objects.add(name)
                        followed.add(function.name)
                        harmless.add(id(value))
            elif tail(call.func) in _ONLY_LOOK | _KEEP_MODE or names.is_wrapper(call.func):
                harmless |= {id(part) for value in values_of(call) for part in _shown(value)}
    for place in names.places:
        match place.node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) as function if name not in followed:
                own = {node.arg for node in walk(function.args) if isinstance(node, ast.arg)} & objects
                harmless |= {id(node) for node in walk(function) if isinstance(node, ast.Name) and node.id in own}
    return any(dotted(node) in objects and id(node) not in harmless for node in loaded)


def _shown(value: ast.expr) -> tuple[ast.expr, ...]:
    """Return an expression and those that it only shows, as `vars(options)` shows `options`."""
    match value:
        case ast.Call(func=ast.Name(id="vars" | "asdict" | "dict" | "str"), args=[inner]):
            return (value, *_shown(inner))
    return (value,)


INEFFECTIVE_SWITCHES = FileFact[tuple[IneffectiveSwitch, ...]](
    "ineffective_switches",
    lambda file: tuple(_switches(file)),
    nothing=(),
    signs=(*SWITCH_ON, *_OPTIONS, *(f"{name}: " for name in TRAINING_SWITCH)),
    worth=lambda text: "backward(" in text or ("Trainer(" in text and bool(_ADDS_OPTION.search(text))),
)
"""The switches and options of a script that have no effect."""
