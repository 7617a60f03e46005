"""Find where a script says how it is launched: wrappers, plugins, training arguments, commands, variables."""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from ckpt_surgery.codemods.facts.launch_facts import (
    CONFIGURATION_SUFFIXES,
    UNKNOWN_SETUP,
    Configuration,
    ConfigurationKind,
    Launch,
    LaunchSetup,
    Strategy,
)
from ckpt_surgery.codemods.facts.syntax import dotted
from ckpt_surgery.codemods.scripts.names import Names, entries, keywords, takes_training_arguments
from ckpt_surgery.model_patches.release_names import TRAINING_SWITCH

_WRAPPERS = {
    **dict.fromkeys(("DistributedDataParallel", "DDP"), Strategy.DDP),
    **dict.fromkeys(("FullyShardedDataParallel", "FSDP", "FSDP2", "fully_shard"), Strategy.FSDP),
}
_ZERO = LaunchSetup(Strategy.ZERO)
_COMMAND = re.compile(
    r"(?<![\w./-])(accelerate launch|torchrun|python3? -m torch\.distributed\.(?:run|launch)|deepspeed)"
    r"[ ]+(?=-|\\|\S+\.py)((?:\\++[ \t\r]*+\n|[^\n])*)"
)
"""A launcher, and what follows it on its line and those that continue it."""
_VARIABLE = re.compile(r"""\bACCELERATE_USE_(FSDP|DEEPSPEED)["']?\]?\s*=\s*["']?(?:true|1)\b""", re.I)
"""How a command, a shell line or `os.environ` tells accelerate which engine to use."""
_DEEPSPEED_OPTIONS = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config")
_ADAPTER_OPTIONS = ("use_peft", "use_peft_lora", "use_lora", "lora", "lora_enable", "use_qlora", "qlora")
_PLACEHOLDERS = ("$", "<", "[", "{")
_NO = {"false", "no", "0", "none", ""}


class _Options(dict[str, str | None]):
    """A command's options: values by name, without dashes; None for an option without a value."""

    def __init__(self, words: Sequence[str]) -> None:
        for option, following in itertools.pairwise([*words, "-"]):
            if option.startswith("-"):
                name = option.lstrip("-").replace("-", "_")
                self[name] = None if following.startswith("-") else following

    def is_set(self, name: str) -> bool:
        """Tell whether a switch is given, alone or with a value that means yes."""
        value = self.get(name, "no")
        return value is None or value.lower() not in _NO

    def file(self, kind: ConfigurationKind, *names: str) -> Configuration | None:
        """Return the configuration file that the first of these options names."""
        file = next(filter(None, map(self.get, names)), None)
        return Configuration(file, kind) if file else None

    def of_accelerate(self) -> tuple[LaunchSetup, Configuration | None]:
        """Return what they ask of `accelerate launch`; a flag for a strategy overrides the file."""
        configuration = self.file(ConfigurationKind.ACCELERATE, "config_file")
        if self.is_set("use_deepspeed"):
            deepspeed = self.file(ConfigurationKind.DEEPSPEED, "deepspeed_config_file")
            return LaunchSetup.of_zero(self), deepspeed or configuration
        if self.is_set("use_fsdp"):
            return LaunchSetup.of_fsdp(self), configuration
        return (LaunchSetup(Strategy.DDP) if self.is_set("multi_gpu") else UNKNOWN_SETUP), configuration


def launches(names: Names, text: str) -> Iterator[Launch]:
    """Yield the launches that a script's calls, options and variables show, then its commands."""
    of_calls: list[Launch] = []
    for place in names.places:
        launch: Launch | None = None
        match place.node:
            case ast.Call() as call:
                launch = _of_call(names, call)
            case ast.Assign(targets=[ast.Attribute(attr="deepspeed" | "fsdp" as option)], value=value):
                launch = _of_arguments(names, {option: value})
        if launch:
            of_calls.append(launch._replace(conditional=place.conditional))
    yield from sorted(of_calls, key=lambda launch: launch.line)
    for name, line, default in names.options():
        if name in ("deepspeed", "fsdp") and isinstance(default, ast.Constant) and default.value:
            yield Launch(f"{name}'s default", line, UNKNOWN_SETUP, conditional=True)
    for match in _VARIABLE.finditer(text):
        strategy = Strategy.FSDP if match[1].upper() == "FSDP" else Strategy.ZERO
        yield Launch(f"ACCELERATE_USE_{match[1]}", text.count("\n", 0, match.start()) + 1, LaunchSetup(strategy))
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
        return Launch(name, line, LaunchSetup.of_zero(options))
    if name == "FullyShardedDataParallelPlugin":
        return Launch(name, line, LaunchSetup.of_fsdp(_constants(given)))
    if None in given and name.endswith(("TrainingArguments", "TrainerArguments")):
        return Launch(f"{name}(**...)", line, UNKNOWN_SETUP)
    return _of_arguments(names, given) if takes_training_arguments(call) else None


def _of_arguments(names: Names, given: Mapping[str | None, ast.expr]) -> Launch | None:
    """Return the launch of `TrainingArguments(deepspeed=...)`, or of `fsdp=...` with its `fsdp_config=...`."""
    deepspeed, fsdp = names.value(given.get("deepspeed")), names.value(given.get("fsdp"))
    if deepspeed and not _is_off(deepspeed):  # a value that is not a literal may be None
        return _deepspeed(names, "deepspeed=...", given["deepspeed"].lineno, deepspeed, unknown=UNKNOWN_SETUP)
    if fsdp is None or _is_off(fsdp):
        return None
    launch = Launch("fsdp=...", given["fsdp"].lineno, LaunchSetup(Strategy.FSDP))
    if not isinstance(fsdp, ast.Constant | ast.List):
        return launch._replace(setup=UNKNOWN_SETUP)
    match names.value(given.get("fsdp_config")):
        case ast.Dict() as options:
            return launch._replace(setup=LaunchSetup.of_fsdp(_constants(entries(options))))
        case ast.Constant(value=str(file)):
            return launch._replace(configuration=Configuration(file, ConfigurationKind.FSDP))
    return launch


def _deepspeed(names: Names, text: str, line: int, value: ast.expr | None, unknown: LaunchSetup = _ZERO) -> Launch:
    """Return a launch with DeepSpeed's configuration: a dict, a file, or `unknown` for anything else."""
    match names.value(value):
        case ast.Dict() as options:
            return Launch(text, line, LaunchSetup.of_deepspeed(_constants(entries(options))))
        case ast.Constant(value=str(file)):
            return Launch(text, line, _ZERO, Configuration(file, ConfigurationKind.DEEPSPEED))
    return Launch(text, line, unknown)


def _constants(given: Mapping[str | None, ast.expr]) -> dict[str, object]:
    """Return arguments, or entries of a dict, that are constants or dicts of such; any other value is None."""
    constants: dict[str, object] = {}
    for name, value in given.items():
        if name:
            constant = value.value if isinstance(value, ast.Constant) else None
            constants[name] = _constants(entries(value)) if isinstance(value, ast.Dict) else constant
    return constants


def _is_off(value: ast.expr) -> bool:
    return (isinstance(value, ast.Constant) and not value.value) or (isinstance(value, ast.List) and not value.elts)


def commands(text: str) -> Iterator[Launch]:
    """Yield the launch commands in a text, in their order; one may be continued over several lines."""
    for match in _COMMAND.finditer(text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        command = re.sub(r"\\+[ \t\r]*\n[ \t#]*", " ", match[2])
        for quote in "`\"'":  # one that was opened before the command ends it
            if before.count(quote) % 2:
                command = command.partition(quote)[0]
        try:
            words = shlex.split(command)
        except ValueError:  # a quote that is never closed
            words = command.split()
        parts = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
        launch = _launch(match[1], parts, text.count("\n", 0, match.start()) + 1)
        if launch:
            yield launch


def _launch(launcher: str, words: list[str], line: int) -> Launch | None:
    position = next((index for index, word in enumerate(words) if word.endswith(".py") or word == "-m"), None)
    if position is None:
        return None
    script = PurePosixPath(words[position]).name
    if words[position] == "-m":
        position = min(position + 1, len(words) - 1)
        script = f"{words[position].rpartition('.')[2]}.py"
    after = words[position + 1 :]
    options = _Options(after)
    configuration: Configuration | None = None
    # the script's own options, as a Trainer or DeepSpeed calls them, override the launcher
    if any(name in options for name in _DEEPSPEED_OPTIONS):
        setup, configuration = _ZERO, options.file(ConfigurationKind.DEEPSPEED, *_DEEPSPEED_OPTIONS)
    elif options.get("fsdp"):
        setup = LaunchSetup(Strategy.FSDP)
        configuration = options.file(ConfigurationKind.FSDP, "fsdp_config")
    elif launcher == "accelerate launch":
        setup, configuration = _Options(words[:position]).of_accelerate()
    else:  # the launcher of DeepSpeed may start anything
        setup = UNKNOWN_SETUP if launcher == "deepspeed" else LaunchSetup(Strategy.DDP)
    return Launch(
        launcher,
        line,
        setup,
        configuration,
        script=script,
        arguments=_unknown_arguments(after),
        adapters=next((f"--{name}" for name in _ADAPTER_OPTIONS if options.is_set(name)), ""),
        checkpointing=any(options.is_set(name) for name in TRAINING_SWITCH),
    )


def _unknown_arguments(words: list[str]) -> str:
    """Return a file that may hold the script's arguments, or a placeholder: `...`, `$@`, `<options>`."""
    for option, word in itertools.pairwise(["", *words]):
        stands_alone = not option.startswith("-")
        is_file = word.endswith(CONFIGURATION_SUFFIXES) and (stands_alone or "config" in option or "args" in option)
        if is_file or not word.strip(".…") or (stands_alone and word.startswith(_PLACEHOLDERS)):
            return word
    return ""
