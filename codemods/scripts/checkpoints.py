"""Where a script switches checkpointing on, and where it chooses the mode: `use_reentrant`, or the option left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.script_facts import CheckpointMode, CheckpointSwitch
from ckpt_surgery.codemods.facts.syntax import arguments_of, dotted
from ckpt_surgery.codemods.scripts.names import Names, entries, keywords, tail, takes_training_arguments
from ckpt_surgery.model_patches.release_names import SWITCH_ON, TRAINING_SWITCH

_OPTION = "use_reentrant"
_CHECKPOINT = {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}


def checkpoint_modes(names: Names) -> Iterator[CheckpointMode]:
    """Where the mode is chosen."""
    for place in names.places:
        callee, chosen = "", None
        match place.node:
            case ast.Call(func=func) as call:
                callee, given = ast.unparse(func), keywords(call)
                chosen = given.get(_OPTION)
                if names.origin(func) in _CHECKPOINT and not {_OPTION, None} & given.keys():
                    yield CheckpointMode(place.spot(call), callee, "default", arguments_of(call))
            case ast.Dict() as options:
                chosen = entries(options).get(_OPTION)
        if isinstance(chosen, ast.Constant) and isinstance(chosen.value, bool):
            yield CheckpointMode(place.spot(chosen), callee, "reentrant" if chosen.value else "non_reentrant")


def checkpoint_switches(names: Names) -> Iterator[CheckpointSwitch]:
    """Where checkpointing is switched on: by a method of a model, or among the arguments of a Trainer."""
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
