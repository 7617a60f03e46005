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
from ckpt_surgery.codemods.scripts.configurations import deepspeed_setup, fsdp_setup, whole_number
from ckpt_surgery.codemods.scripts.names import (
    Names,
    is_distributed_data_parallel,
    nodes_and_tests,
    tail,
    takes_training_arguments,
)

_FSDP = {"FullyShardedDataParallel", "FSDP", "FSDP2", "fully_shard"}
_HF_CONFIG = {"HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig"}


def launches(names: Names, text: str) -> Iterator[Launch]:
    """What the calls of a script say, then its commands, each in the order of the lines."""
    assigned = _Assigned(names)
    for node, under_test in nodes_and_tests(names.tree):
        launch: Launch | None = None
        match node:
            case ast.Call():
                launch = _of_call(names, node, assigned)
            case ast.Assign(targets=[ast.Attribute(attr="deepspeed" | "fsdp" as option)], value=value):
                launch = _of_arguments({option: value}, node.lineno, assigned)
        if launch:
            yield launch._replace(conditional=under_test)
    yield from _defaults(names, assigned)
    yield from environment(text)
    yield from commands(text)


def _defaults(names: Names, assigned: _Assigned) -> Iterator[Launch]:
    """Options of the script whose default switches an engine on; a user may switch it off."""
    for node in names.nodes:
        match node:
            case ast.ClassDef(body=body):
                options = [
                    (statement.target.id, statement.lineno, _default(statement.value) or statement.value)
                    for statement in body
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
                ]
            case ast.Call(func=func, args=[ast.Constant(value=str(flag)), *_]) if tail(func) == "add_argument":
                options = [(flag.lstrip("-"), node.lineno, _default(node))]
            case _:
                continue
        for name, line, value in options:
            if name in ("deepspeed", "fsdp") and isinstance(value, ast.Constant):
                launch = _of_arguments({name: value}, line, assigned)
                if launch:
                    yield launch._replace(text=f"{name}'s default", conditional=True)


def _default(value: ast.expr | None) -> ast.expr | None:
    """The default of `field(default=...)` or `add_argument(..., default=...)`."""
    keywords = value.keywords if isinstance(value, ast.Call) else []
    return next((keyword.value for keyword in keywords if keyword.arg == "default"), None)


class _Assigned:
    """The one value of each name that a file assigns only once."""

    def __init__(self, names: Names) -> None:
        self._values: dict[str, list[ast.expr]] = {}
        for node in names.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._values.setdefault(name, []).append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._values.setdefault(name, []).append(value)
        self._parameters = {node.arg for node in names.nodes if isinstance(node, ast.arg)}

    def value(self, node: ast.expr | None) -> ast.expr | None:
        """What an expression surely is: itself, or the only value of the name that it is."""
        if isinstance(node, ast.Name) and node.id not in self._parameters:
            values = self._values.get(node.id, ())
            return values[0] if len(values) == 1 else node
        return node


def _of_call(names: Names, call: ast.Call, assigned: _Assigned) -> Launch | None:
    origin = names.origin(call.func)
    name = origin.rpartition(".")[2]
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    line = call.lineno
    if is_distributed_data_parallel(origin):
        return Launch(dotted(call.func), line, LaunchSetup(Strategy.DDP))
    if name in _FSDP:
        return Launch(dotted(call.func), line, LaunchSetup(Strategy.FSDP))
    if origin == "deepspeed.initialize":
        return _deepspeed("deepspeed.initialize", line, given.get("config", given.get("config_params")), assigned)
    if name in _HF_CONFIG:
        return _deepspeed(name, line, call.args[0] if call.args else None, assigned)
    if name == "DeepSpeedPlugin":
        stage = _constant(given.get("zero_stage"))
        if stage is not None:
            return Launch(name, line, LaunchSetup(Strategy.ZERO, whole_number(stage)))
        return _deepspeed(name, line, given.get("hf_ds_config"), assigned)
    if name == "FullyShardedDataParallelPlugin":
        return Launch(name, line, _fsdp(given.get("activation_checkpointing")))
    if takes_training_arguments(call):
        unpacked = any(keyword.arg is None for keyword in call.keywords)
        if unpacked and name.endswith(("TrainingArguments", "TrainerArguments")):
            return Launch(f"{name}(**...)", line, UNKNOWN_SETUP)
        return _of_arguments(given, line, assigned)
    return None


def _of_arguments(given: dict[str, ast.expr], line: int, assigned: _Assigned) -> Launch | None:
    """`TrainingArguments(deepspeed=...)`, or `fsdp=...` with its `fsdp_config=...`."""
    deepspeed, fsdp = assigned.value(given.get("deepspeed")), assigned.value(given.get("fsdp"))
    if deepspeed and not _is_off(deepspeed):
        return _deepspeed("deepspeed=...", given["deepspeed"].lineno, deepspeed, assigned)
    if fsdp is None or _is_off(fsdp):
        return None
    line = given["fsdp"].lineno
    if not isinstance(fsdp, ast.Constant | ast.List):
        return Launch("fsdp=...", line, UNKNOWN_SETUP)
    match assigned.value(given.get("fsdp_config")):
        case ast.Dict() as options:
            return Launch("fsdp=...", line, fsdp_setup(_constants(options)))
        case ast.Constant(value=str(file)):
            return Launch("fsdp=...", line, LaunchSetup(Strategy.FSDP), Configuration(file, ConfigurationKind.FSDP))
    return Launch("fsdp=...", line, LaunchSetup(Strategy.FSDP))


def _deepspeed(text: str, line: int, value: ast.expr | None, assigned: _Assigned) -> Launch:
    """A launch with DeepSpeed's configuration: a dict, a file, or something that cannot be known."""
    value = assigned.value(value)
    match value:
        case ast.Dict():
            return Launch(text, line, deepspeed_setup(_constants(value)))
        case ast.Constant(value=str(file)):
            return Launch(text, line, LaunchSetup(Strategy.ZERO), Configuration(file, ConfigurationKind.DEEPSPEED))
        case None:
            return Launch(text, line, LaunchSetup(Strategy.ZERO))
    option = text == "deepspeed=..."  # an option may be None
    return Launch(text, line, UNKNOWN_SETUP if option else LaunchSetup(Strategy.ZERO))


def _fsdp(switch: ast.expr | None) -> LaunchSetup:
    return LaunchSetup(Strategy.FSDP, activation_checkpointing=_constant(switch) is True)


def _constants(node: ast.Dict) -> Mapping[str, object]:
    """The entries of a dict that are constants or dicts of such; any other value is None."""
    return {
        key.value: _constants(value) if isinstance(value, ast.Dict) else _constant(value)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _is_off(value: ast.expr) -> bool:
    """Whether an option is surely not set."""
    return (isinstance(value, ast.Constant) and not value.value) or (isinstance(value, ast.List) and not value.elts)
