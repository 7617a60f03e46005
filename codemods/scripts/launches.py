"""Where a script says how it is launched: wrappers, plugins, the options of training arguments, and commands."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from ckpt_surgery.codemods.facts.launch_facts import (
    UNKNOWN_SETUP,
    Configuration,
    ConfigurationKind,
    Launch,
    LaunchSetup,
    Strategy,
)
from ckpt_surgery.codemods.facts.syntax import dotted
from ckpt_surgery.codemods.scripts.commands import commands, environment
from ckpt_surgery.codemods.scripts.names import Names, entries, keywords, takes_training_arguments
from ckpt_surgery.codemods.scripts.setups import deepspeed_setup, fsdp_setup, zero_setup

_WRAPPERS = {
    **dict.fromkeys(("DistributedDataParallel", "DDP"), Strategy.DDP),
    **dict.fromkeys(("FullyShardedDataParallel", "FSDP", "FSDP2", "fully_shard"), Strategy.FSDP),
}
_ZERO = LaunchSetup(Strategy.ZERO)


def launches(names: Names, text: str) -> Iterator[Launch]:
    """What the calls of a script say, then its commands, each in the order of the lines."""
    found: list[Launch] = []
    for place in names.places:
        launch: Launch | None = None
        match place.node:
            case ast.Call() as call:
                launch = _of_call(names, call)
            case ast.Assign(targets=[ast.Attribute(attr="deepspeed" | "fsdp" as option)], value=value):
                launch = _of_arguments(names, {option: value})
        if launch:
            found.append(launch._replace(conditional=place.conditional))
    yield from sorted(found, key=lambda launch: launch.line)
    for name, line, default in names.options():
        if name in ("deepspeed", "fsdp") and isinstance(default, ast.Constant) and default.value:
            yield Launch(f"{name}'s default", line, UNKNOWN_SETUP, conditional=True)
    yield from environment(text)
    yield from commands(text)


def _of_call(names: Names, call: ast.Call) -> Launch | None:
    origin, line = names.origin(call.func), call.lineno
    name = origin.rpartition(".")[2]
    given = keywords(call)
    if name in _WRAPPERS:
        return Launch(dotted(call.func), line, LaunchSetup(_WRAPPERS[name]))
    if origin == "deepspeed.initialize":
        return _deepspeed(names, origin, line, given.get("config", given.get("config_params")))
    if name in ("HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig"):
        return _deepspeed(names, name, line, call.args[0] if call.args else None)
    if name == "DeepSpeedPlugin":
        options = _constants(given)
        if options.get("zero_stage") is None:
            return _deepspeed(names, name, line, given.get("hf_ds_config"))
        return Launch(name, line, zero_setup(options))
    if name == "FullyShardedDataParallelPlugin":
        return Launch(name, line, fsdp_setup(_constants(given)))
    if None in given and name.endswith(("TrainingArguments", "TrainerArguments")):
        return Launch(f"{name}(**...)", line, UNKNOWN_SETUP)
    return _of_arguments(names, given) if takes_training_arguments(call) else None


def _of_arguments(names: Names, given: Mapping[str | None, ast.expr]) -> Launch | None:
    """`TrainingArguments(deepspeed=...)`, or `fsdp=...` with its `fsdp_config=...`."""
    deepspeed, fsdp = names.value(given.get("deepspeed")), names.value(given.get("fsdp"))
    if deepspeed and not _is_off(deepspeed):  # what is not written out may be None
        return _deepspeed(names, "deepspeed=...", given["deepspeed"].lineno, deepspeed, unknown=UNKNOWN_SETUP)
    if fsdp is None or _is_off(fsdp):
        return None
    launch = Launch("fsdp=...", given["fsdp"].lineno, LaunchSetup(Strategy.FSDP))
    if not isinstance(fsdp, ast.Constant | ast.List):
        return launch._replace(setup=UNKNOWN_SETUP)
    match names.value(given.get("fsdp_config")):
        case ast.Dict() as options:
            return launch._replace(setup=fsdp_setup(_constants(entries(options))))
        case ast.Constant(value=str(file)):
            return launch._replace(configuration=Configuration(file, ConfigurationKind.FSDP))
    return launch


def _deepspeed(names: Names, text: str, line: int, value: ast.expr | None, unknown: LaunchSetup = _ZERO) -> Launch:
    """A launch with DeepSpeed's configuration: a dict, a file, or something that cannot be known."""
    match names.value(value):
        case ast.Dict() as options:
            return Launch(text, line, deepspeed_setup(_constants(entries(options))))
        case ast.Constant(value=str(file)):
            return Launch(text, line, _ZERO, Configuration(file, ConfigurationKind.DEEPSPEED))
    return Launch(text, line, unknown)


def _constants(given: Mapping[str | None, ast.expr]) -> dict[str, object]:
    """Arguments, or entries of a dict, that are constants or dicts of such; any other value is None."""
    constants: dict[str, object] = {}
    for name, value in given.items():
        if name:
            constant = value.value if isinstance(value, ast.Constant) else None
            constants[name] = _constants(entries(value)) if isinstance(value, ast.Dict) else constant
    return constants


def _is_off(value: ast.expr) -> bool:
    """Whether an option is surely not set."""
    return (isinstance(value, ast.Constant) and not value.value) or (isinstance(value, ast.List) and not value.elts)
