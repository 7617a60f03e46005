"""The commands that start a script, where its header, docstring or comments show them, and accelerate's variables."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
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
from ckpt_surgery.codemods.scripts.setups import is_true, whole_number
from ckpt_surgery.model_patches.release_names import TRAINING_SWITCH

_COMMAND = re.compile(
    r"(?<![\w./-])(accelerate launch|torchrun|python3? -m torch\.distributed\.(?:run|launch)|deepspeed)"
    r"[ ]+(?=-|\\|\S+\.py)((?:\\++[ \t\r]*+\n|[^\n])*)"
)
"""A launcher, and what follows it on its line and those that continue it."""
_VARIABLE = re.compile(
    r"\b(ACCELERATE_USE_FSDP|ACCELERATE_USE_DEEPSPEED|ACCELERATE_DEEPSPEED_ZERO_STAGE|FSDP_ACTIVATION_CHECKPOINTING)"
    r"""["']?\]?\s*=\s*["']?(\w+)"""
)
_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--deepspeed_config_file", "--ds_config")
_ADAPTERS = ("--use_peft", "--use_peft_lora", "--use_lora", "--lora", "--lora_enable", "--use_qlora", "--qlora")
_CHECKPOINTING = [f"--{name}" for name in TRAINING_SWITCH]
_PLACEHOLDERS = ("$", "<", "[", "{")
_NO = {"false", "no", "0", "none", ""}


class _Options:
    """The options of a command, and the value of each; None for one that stands alone."""

    def __init__(self, words: Sequence[str]) -> None:
        self.given: dict[str, str | None] = {}
        for option, following in itertools.pairwise([*words, "-"]):
            if option.startswith("-"):
                self.given[option] = None if following.startswith("-") else following

    def value(self, *options: str) -> str:
        """The value of the first of these options that has one; empty without any."""
        return next(filter(None, map(self.given.get, options)), "")

    def file(self, kind: ConfigurationKind, *options: str) -> Configuration | None:
        """The configuration file that they name."""
        name = self.value(*options)
        return Configuration(name, kind) if name else None

    def is_set(self, option: str) -> bool:
        """Whether a switch is given, alone or with a value that means yes."""
        value = self.given.get(option, "no")
        return value is None or value.lower() not in _NO


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
    matches: dict[str, re.Match[str]] = {}
    for match in _VARIABLE.finditer(text):
        matches.setdefault(match[1], match)
    values = {name: match[2] for name, match in matches.items()}
    for name, match in matches.items():
        if name.startswith("ACCELERATE_USE_") and is_true(match[2]):
            setup = LaunchSetup(Strategy.ZERO, whole_number(values.get("ACCELERATE_DEEPSPEED_ZERO_STAGE")))
            if name.endswith("FSDP"):
                doubled = is_true(values.get("FSDP_ACTIVATION_CHECKPOINTING"))
                setup = LaunchSetup(Strategy.FSDP, activation_checkpointing=doubled)
            yield Launch(name, text.count("\n", 0, match.start()) + 1, setup)
            return


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
    options = _Options(after)
    setup, configuration = _own(options)
    if setup.strategy is None and launcher == "accelerate launch":
        setup, configuration = _accelerate(_Options(words[:position]))
    elif setup.strategy is None and launcher != "deepspeed":  # that of DeepSpeed may start anything
        setup = LaunchSetup(Strategy.DDP)
    return Launch(
        launcher,
        line,
        setup,
        configuration,
        script=script,
        arguments=_unknown_arguments(after),
        adapters=next(filter(options.is_set, _ADAPTERS), ""),
        checkpointing=any(map(options.is_set, _CHECKPOINTING)),
    )


def _accelerate(options: _Options) -> tuple[LaunchSetup, Configuration | None]:
    """The options of `accelerate launch`: a flag for a strategy counts for more than the configuration file."""
    setup = LaunchSetup(Strategy.DDP) if options.is_set("--multi_gpu") else UNKNOWN_SETUP
    configuration = options.file(ConfigurationKind.ACCELERATE, "--config_file", "--config-file")
    if options.is_set("--use_deepspeed"):
        setup = LaunchSetup(Strategy.ZERO, whole_number(options.value("--zero_stage")))
        configuration = options.file(ConfigurationKind.DEEPSPEED, "--deepspeed_config_file") or configuration
    elif options.is_set("--use_fsdp"):
        doubled = is_true(options.value("--fsdp_activation_checkpointing"))
        setup = LaunchSetup(Strategy.FSDP, activation_checkpointing=doubled)
    return setup, configuration


def _own(options: _Options) -> tuple[LaunchSetup, Configuration | None]:
    """The options of the script itself, as a Trainer's arguments or DeepSpeed's name them."""
    if any(option in options.given for option in _DEEPSPEED):
        return LaunchSetup(Strategy.ZERO), options.file(ConfigurationKind.DEEPSPEED, *_DEEPSPEED)
    if options.value("--fsdp"):
        return LaunchSetup(Strategy.FSDP), options.file(ConfigurationKind.FSDP, "--fsdp_config")
    return UNKNOWN_SETUP, None


def _unknown_arguments(words: list[str]) -> str:
    """The file that holds the script's arguments, or a word that stands for more of them: `...`, `$@`, `<options>`.

    A file is the first word, or the value of `--config` and the like. Empty if all arguments are written out.
    """
    pairs = list(itertools.pairwise(["", *words]))
    for option, value in pairs:
        names_arguments = not option or (option.startswith("--") and ("config" in option or "args" in option))
        if names_arguments and option not in (*_DEEPSPEED, "--fsdp_config") and value.endswith(CONFIGURATION_SUFFIXES):
            return value
    for option, word in pairs:
        if not word.strip(".…") or (word.startswith(_PLACEHOLDERS) and not option.startswith("-")):
            return word
    return ""
