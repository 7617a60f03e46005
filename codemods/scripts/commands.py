"""The commands that start a script, where its header, docstring or comments show them, and accelerate's variables."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeAlias

from ckpt_surgery.codemods.facts.launch_facts import (
    CONFIGURATION_SUFFIXES,
    UNKNOWN_SETUP,
    Configuration,
    ConfigurationKind,
    Launch,
    LaunchSetup,
    Strategy,
)
from ckpt_surgery.codemods.scripts.setups import fsdp_setup, zero_setup
from ckpt_surgery.model_patches.release_names import TRAINING_SWITCH

_COMMAND = re.compile(
    r"(?<![\w./-])(accelerate launch|torchrun|python3? -m torch\.distributed\.(?:run|launch)|deepspeed)"
    r"[ ]+(?=-|\\|\S+\.py)((?:\\++[ \t\r]*+\n|[^\n])*)"
)
"""A launcher, and what follows it on its line and those that continue it."""
_VARIABLE = re.compile(r"""\bACCELERATE_USE_(FSDP|DEEPSPEED)["']?\]?\s*=\s*["']?(?:true|1)\b""", re.I)
_DEEPSPEED = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config")
_ADAPTERS = ("use_peft", "use_peft_lora", "use_lora", "lora", "lora_enable", "use_qlora", "qlora")
_PLACEHOLDERS = ("$", "<", "[", "{")
_NO = {"false", "no", "0", "none", ""}

Options: TypeAlias = Mapping[str, str | None]
"""The options of a command by their names without dashes, and the value of each; None for one that stands alone."""


def commands(text: str) -> Iterator[Launch]:
    """The commands among the lines of a file, those over several lines too, in their order."""
    for match in _COMMAND.finditer(text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        command = re.sub(r"\\+[ \t\r]*\n[ \t#]*", " ", match[2])
        for quote in "`\"'":  # one that was opened before the command ends it
            if before.count(quote) % 2:
                command = command.partition(quote)[0]
        launch = _launch(match[1], _words(command), text.count("\n", 0, match.start()) + 1)
        if launch:
            yield launch


def environment(text: str) -> Iterator[Launch]:
    """The variables with which accelerate is told its engine, set in a command, a shell line or `os.environ`."""
    for match in _VARIABLE.finditer(text):
        strategy = Strategy.FSDP if match[1].upper() == "FSDP" else Strategy.ZERO
        yield Launch(f"ACCELERATE_USE_{match[1]}", text.count("\n", 0, match.start()) + 1, LaunchSetup(strategy))


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is never closed
        words = command.split()
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def _launch(launcher: str, words: list[str], line: int) -> Launch | None:
    """The launch that a command is; None if it starts no script."""
    position = next((index for index, word in enumerate(words) if word.endswith(".py") or word == "-m"), None)
    if position is None:
        return None
    script = PurePosixPath(words[position]).name
    if words[position] == "-m":
        position = min(position + 1, len(words) - 1)
        script = f"{words[position].rpartition('.')[2]}.py"
    after = words[position + 1 :]
    options = _options(after)
    setup, configuration = _own(options)
    if setup.strategy is None and launcher == "accelerate launch":
        setup, configuration = _accelerate(_options(words[:position]))
    elif setup.strategy is None and launcher != "deepspeed":  # that of DeepSpeed may start anything
        setup = LaunchSetup(Strategy.DDP)
    return Launch(
        launcher,
        line,
        setup,
        configuration,
        script=script,
        arguments=_unknown_arguments(after),
        adapters=next((f"--{name}" for name in _ADAPTERS if _is_set(options, name)), ""),
        checkpointing=any(_is_set(options, name) for name in TRAINING_SWITCH),
    )


def _options(words: Sequence[str]) -> Options:
    pairs = itertools.pairwise([*words, "-"])
    return {
        option.lstrip("-").replace("-", "_"): None if following.startswith("-") else following
        for option, following in pairs
        if option.startswith("-")
    }


def _is_set(options: Options, name: str) -> bool:
    """Whether a switch is given, alone or with a value that means yes."""
    value = options.get(name, "no")
    return value is None or value.lower() not in _NO


def _file(options: Options, kind: ConfigurationKind, *names: str) -> Configuration | None:
    """The configuration file that one of the options names."""
    file = next(filter(None, map(options.get, names)), None)
    return Configuration(file, kind) if file else None


def _accelerate(options: Options) -> tuple[LaunchSetup, Configuration | None]:
    """The options of `accelerate launch`: a flag for a strategy counts for more than the configuration file."""
    configuration = _file(options, ConfigurationKind.ACCELERATE, "config_file")
    if _is_set(options, "use_deepspeed"):
        deepspeed = _file(options, ConfigurationKind.DEEPSPEED, "deepspeed_config_file")
        return zero_setup(options), deepspeed or configuration
    if _is_set(options, "use_fsdp"):
        return fsdp_setup(options), configuration
    return (LaunchSetup(Strategy.DDP) if _is_set(options, "multi_gpu") else UNKNOWN_SETUP), configuration


def _own(options: Options) -> tuple[LaunchSetup, Configuration | None]:
    """The options of the script itself, as a Trainer's arguments or DeepSpeed's name them."""
    if any(name in options for name in _DEEPSPEED):
        return LaunchSetup(Strategy.ZERO), _file(options, ConfigurationKind.DEEPSPEED, *_DEEPSPEED)
    if options.get("fsdp"):
        return LaunchSetup(Strategy.FSDP), _file(options, ConfigurationKind.FSDP, "fsdp_config")
    return UNKNOWN_SETUP, None


def _unknown_arguments(words: list[str]) -> str:
    """A file that may hold the script's arguments, or a word that stands for more: `...`, `$@`, `<options>`."""
    for option, word in itertools.pairwise(["", *words]):
        stands_alone = not option.startswith("-")
        is_file = word.endswith(CONFIGURATION_SUFFIXES) and (stands_alone or "config" in option or "args" in option)
        if is_file or not word.strip(".…") or (stands_alone and word.startswith(_PLACEHOLDERS)):
            return word
    return ""
