"""The commands that start a script, where its header, docstring or comments show them, and accelerate's variables."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
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
from ckpt_surgery.codemods.scripts.configurations import is_true, whole_number
from ckpt_surgery.model_patches.release_names import TRAINING_SWITCH

_COMMAND = re.compile(
    r"(?<![\w./-])(accelerate launch|torchrun|python3? -m torch\.distributed\.(?:run|launch)|deepspeed)"
    r"[ ]+(?=-|\\|\S+\.py)"
)
_ENVIRONMENT = re.compile(r"""\b(ACCELERATE_USE_(?:FSDP|DEEPSPEED))["']?\]?\s*=\s*["']?(?:1|[Tt]rue|yes)\b""")
_STAGE = re.compile(r"""\bACCELERATE_DEEPSPEED_ZERO_STAGE["']?\]?\s*=\s*["']?(\d)""")
_DOUBLED = re.compile(r"""\bFSDP_ACTIVATION_CHECKPOINTING["']?\]?\s*=\s*["']?(?:1|[Tt]rue|yes)\b""")
_QUOTES = "`\"'"
_CONFIGURATION = ("--config_file", "--config-file")
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--deepspeed_config_file", "--ds_config")
_ADAPTERS = ("--use_peft", "--use_peft_lora", "--use_lora", "--lora", "--lora_enable", "--use_qlora", "--qlora")
_CHECKPOINTING = tuple(f"--{name}" for name in TRAINING_SWITCH)
_PLACEHOLDERS = ("$", "<", "[", "{")
_NO = {"false", "no", "0", "none", ""}


def commands(text: str) -> Iterator[Launch]:
    """The commands among the lines of a file, those over several lines too, in their order."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        match = _COMMAND.search(line)
        if match:
            words = _words(_whole(lines, number, match))
            launch = _launch(match[1], words, number + 1)
            if launch:
                yield launch


def environment(text: str) -> Iterator[Launch]:
    """The variables with which accelerate is told its engine, set in a command, a shell line or `os.environ`."""
    match = _ENVIRONMENT.search(text)
    if match:
        stage, doubled = _STAGE.search(text), _DOUBLED.search(text)
        if match[1].endswith("FSDP"):
            setup = LaunchSetup(Strategy.FSDP, activation_checkpointing=bool(doubled))
        else:
            setup = LaunchSetup(Strategy.ZERO, int(stage[1]) if stage else None)
        yield Launch(match[1], text.count("\n", 0, match.start()) + 1, setup)


def _whole(lines: list[str], number: int, match: re.Match[str]) -> str:
    """What follows the launcher, with the lines that continue it; it ends with a quote opened before the launcher."""
    before = lines[number][: match.start()]
    whole = lines[number][match.end() :].rstrip()
    while whole.endswith("\\") and number + 1 < len(lines):
        number += 1
        whole = f"{whole.rstrip(chr(92))} {lines[number].strip().lstrip('#').strip()}"
    for quote in _QUOTES:
        if before.count(quote) % 2:
            whole = whole.partition(quote)[0]
    return whole


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:  # a quote that is never closed
        words = command.split()
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def _launch(launcher: str, words: list[str], line: int) -> Launch | None:
    """The launch that a command is; None if it starts no script."""
    position = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if "-m" in words and (position is None or words.index("-m") < position):
        position = min(words.index("-m") + 1, len(words) - 1)
        script = words[position].rpartition(".")[2] + ".py"
    elif position is not None:
        script = PurePosixPath(words[position]).name
    else:
        return None
    before, after = words[:position], words[position + 1 :]
    setup, configuration = _accelerate(before) if launcher == "accelerate launch" else (UNKNOWN_SETUP, None)
    own, own_configuration = _own(after)
    if own.strategy:
        setup, configuration = own, own_configuration
    elif launcher not in ("accelerate launch", "deepspeed"):  # that of DeepSpeed may start anything
        setup = LaunchSetup(Strategy.DDP)
    return Launch(
        launcher,
        line,
        setup,
        configuration,
        script=script,
        arguments=_arguments_file(after) or _left_out(after),
        adapters=next((option for option in _ADAPTERS if _is_set(after, option)), ""),
        checkpointing=any(_is_set(after, option) for option in _CHECKPOINTING),
    )


def _accelerate(words: list[str]) -> tuple[LaunchSetup, Configuration | None]:
    """The options of `accelerate launch`: a flag for a strategy counts for more than the configuration file."""
    file = _value(words, *_CONFIGURATION)
    configuration = Configuration(file, ConfigurationKind.ACCELERATE) if file else None
    if _is_set(words, "--use_deepspeed"):
        deepspeed = _value(words, "--deepspeed_config_file")
        if deepspeed:
            configuration = Configuration(deepspeed, ConfigurationKind.DEEPSPEED)
        return LaunchSetup(Strategy.ZERO, whole_number(_value(words, "--zero_stage"))), configuration
    if _is_set(words, "--use_fsdp"):
        doubled = is_true(_value(words, "--fsdp_activation_checkpointing"))
        return LaunchSetup(Strategy.FSDP, activation_checkpointing=doubled), configuration
    return (LaunchSetup(Strategy.DDP) if _is_set(words, "--multi_gpu") else UNKNOWN_SETUP), configuration


def _own(words: list[str]) -> tuple[LaunchSetup, Configuration | None]:
    """The options of the script itself, as a Trainer's arguments or DeepSpeed's name them."""
    file = _value(words, *_DEEPSPEED)
    if file or any(option in words for option in _DEEPSPEED):
        return LaunchSetup(Strategy.ZERO), Configuration(file, ConfigurationKind.DEEPSPEED) if file else None
    if _value(words, "--fsdp"):
        file = _value(words, "--fsdp_config")
        return LaunchSetup(Strategy.FSDP), Configuration(file, ConfigurationKind.FSDP) if file else None
    return UNKNOWN_SETUP, None


def _arguments_file(words: list[str]) -> str:
    """The file that holds the script's arguments: the first word, or the value of `--config` and the like."""
    for option, value in itertools.pairwise(["", *words]):
        names_arguments = not option or (option.startswith("--") and ("config" in option or "args" in option))
        if names_arguments and option not in (*_DEEPSPEED, "--fsdp_config") and value.endswith(CONFIGURATION_SUFFIXES):
            return value
    return ""


def _left_out(words: list[str]) -> str:
    """A word that stands for more options: `...`, `$@`, `<options>`; empty if all are written out."""
    for option, word in itertools.pairwise(["", *words]):
        is_value = option.startswith("-")
        if word.strip(".…") == "" or (not is_value and word.startswith(_PLACEHOLDERS)):
            return word
    return ""


def _value(words: list[str], *options: str) -> str:
    """The word behind one of the options; empty without one."""
    for option, value in itertools.pairwise(words):
        if option in options and not value.startswith("-"):
            return value
    return ""


def _is_set(words: list[str], option: str) -> bool:
    """Whether a switch is given, alone or with a value that means yes."""
    return option in words and (_value(words, option).lower() not in _NO or _stands_alone(words, option))


def _stands_alone(words: list[str], option: str) -> bool:
    following = words[words.index(option) + 1 :]
    return not following or following[0].startswith("-")
