"""Find what shows that a script trains, in how many processes, and where it switches checkpointing on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.script_facts import CheckpointMode, CheckpointSwitch, Sign
from ckpt_surgery.codemods.facts.syntax import arguments_of, dotted
from ckpt_surgery.codemods.scripts.names import (
    Names,
    entries,
    is_accelerator,
    keywords,
    tail,
    takes_training_arguments,
)
from ckpt_surgery.model_patches.release_names import SWITCH_ON, TRAINING_SWITCH

_LAUNCH_VARIABLES = {"LOCAL_RANK", "WORLD_SIZE", "RANK"}
_LAUNCHER = re.compile(r"^[^\n]*(torchrun|accelerate launch|torch\.distributed\.(?:run|launch))\b", re.M)
_OPTION = "use_reentrant"
_CHECKPOINT = {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}


def signs(names: Names, text: str) -> Iterator[Sign]:
    """Yield the signs of a script."""
    prepares = any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "prepare" and is_accelerator(call.func.value)
        for _, call in names.calls
    )
    for place in names.places:
        match place.node:
            case ast.Call() as call:
                yield from (sign for sign in _of_call(names, call) if prepares or sign.kind != "accelerate")
            case ast.Subscript(value=value, slice=ast.Constant(value=str(key))) as node if key in _LAUNCH_VARIABLES:
                if tail(value) == "environ":
                    yield Sign("launch", key, node.lineno)
    yield from sorted(_adapters(names), key=lambda sign: sign.line)
    for match in _LAUNCHER.finditer(text):
        yield Sign("launcher", match.group(1), text.count("\n", 0, match.start(1)) + 1)


def _of_call(names: Names, call: ast.Call) -> Iterator[Sign]:
    func, name, line = call.func, tail(call.func), call.lineno
    owner = func.value if isinstance(func, ast.Attribute) else None
    if names.is_wrapper(func):
        yield Sign("ddp", dotted(func), line)
    elif name == "init_process_group":
        yield Sign("group", dotted(func), line)
    elif name == "backward" and owner:
        yield Sign("backward", name, line)
        if is_accelerator(owner):
            yield Sign("accelerate", dotted(func), line)
    elif name == "train" and owner:
        if _makes(owner, "Trainer"):
            yield Sign("trainer", "Trainer(...).train", line)
        elif any(_makes(value, "Trainer") for _, value in names.assigned.get(dotted(owner), ())):
            yield Sign("trainer", dotted(func), line)
    elif name == "getenv" or (owner and tail(owner) == "environ"):
        match call.args:
            case [ast.Constant(value=str(variable)), *_] if variable in _LAUNCH_VARIABLES:
                yield Sign("launch", variable, line)
    for option, value in keywords(call).items():
        if option and option.startswith("ddp_"):
            yield Sign("arguments", option, value.lineno)


def _makes(value: ast.expr, ending: str) -> bool:
    """Tell whether a value is a new object of a class with this ending: `SFTTrainer(...)`, `LoraConfig(...)`."""
    return isinstance(value, ast.Call) and tail(value.func).endswith(ending)


def _adapters(names: Names) -> Iterator[Sign]:
    """Yield what shows that PEFT adapters are trained on a frozen model, always or under a condition."""
    for place, call in names.calls:
        name, config = tail(call.func), keywords(call).get("peft_config")
        sure = not place.conditional
        if name in ("get_peft_model", "add_adapter"):
            yield Sign("adapters" if sure else "some_adapters", name, call.lineno)
        elif name.endswith("Trainer") and config and ast.unparse(config) != "None":
            made = (isinstance(config, ast.Name) and names.assigned.get(config.id)) or [(place, config)]
            sure = sure and all(_makes(value, "Config") and not origin.conditional for origin, value in made)
            yield Sign("adapters" if sure else "some_adapters", "peft_config", config.lineno)


def checkpoint_modes(names: Names) -> Iterator[CheckpointMode]:
    """Yield each choice of `use_reentrant`, and each call of torch's function that leaves it out."""
    for place in names.places:
        chosen = None
        match place.node:
            case ast.Call(func=func) as call:
                given = keywords(call)
                chosen = given.get(_OPTION)
                if names.origin(func) in _CHECKPOINT and not {_OPTION, None} & given.keys():
                    yield CheckpointMode(place.spot(call), ast.unparse(func), "default", arguments_of(call))
            case ast.Dict() as options:
                chosen = entries(options).get(_OPTION)
        if isinstance(chosen, ast.Constant) and isinstance(chosen.value, bool):
            callee = ast.unparse(place.node.func) if isinstance(place.node, ast.Call) else ""
            yield CheckpointMode(place.spot(chosen), callee, "reentrant" if chosen.value else "non_reentrant")


def checkpoint_switches(names: Names) -> Iterator[CheckpointSwitch]:
    """Yield where checkpointing is switched on: by a method of a model, or among the arguments of a Trainer."""
    for place in names.places:
        match place.node:
            case ast.Call(func=func) as call if tail(func) in SWITCH_ON:
                options, text = bool(call.args or call.keywords), f"{ast.unparse(func)}()"
                yield CheckpointSwitch(place.spot(call), text, "method", options, place.conditional)
            case ast.Call() as call if takes_training_arguments(call):
                given = keywords(call)
                for name in TRAINING_SWITCH:
                    if _is_true(given.get(name)):
                        options, text = f"{name}_kwargs" in given, f"{name}=True"
                        spot = place.spot(given[name])
                        yield CheckpointSwitch(spot, text, "argument", options, place.conditional)
            case ast.Assign(targets=[ast.Attribute(value=owner, attr=name) as target], value=value):
                is_arguments = dotted(owner).lower().endswith(("args", "arguments"))
                if is_arguments and name in TRAINING_SWITCH and _is_true(value):
                    text = f"{ast.unparse(target)} = True"
                    yield CheckpointSwitch(place.spot(value), text, "argument", False, place.conditional)


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
