"""The types for how a training script is launched, as plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

CONFIGURATION_SUFFIXES = (".yaml", ".yml", ".json")
_YES = {"true", "yes", "on", "y", "t", "1"}
"""What accelerate and transformers read as yes."""


class Strategy(StrEnum):
    """The strategies that spread a model's training over processes."""

    ONE_PROCESS = "one process"
    DDP = "DistributedDataParallel"
    ZERO = "DeepSpeed ZeRO"
    FSDP = "FSDP"
    OTHER = "another engine"


class LaunchSetup(NamedTuple):
    """A strategy and those of its options that matter to checkpointing.

    `strategy` and the `stage` of ZeRO are None if they are not known; `activation_checkpointing` is FSDP's own.
    """

    strategy: Strategy | None
    stage: int | None = None
    activation_checkpointing: bool = False

    @classmethod
    def of_zero(cls, options: Mapping[str, object]) -> LaunchSetup:
        """Return the setup of accelerate's options for DeepSpeed."""
        stage = str(options.get("zero_stage"))
        return cls(Strategy.ZERO, int(stage) if len(stage) == 1 and stage.isdecimal() else None)

    @classmethod
    def of_deepspeed(cls, values: Mapping[str, object]) -> LaunchSetup:
        """Return the setup of a DeepSpeed configuration: its stage is `zero_optimization.stage`, by default 0."""
        section = values.get("zero_optimization", {})
        return cls.of_zero({"zero_stage": section.get("stage", 0)} if isinstance(section, Mapping) else {})

    @classmethod
    def of_fsdp(cls, values: Mapping[str, object]) -> LaunchSetup:
        """Return the setup of a Trainer's `fsdp_config`, whose keys may begin with `fsdp_`."""
        switches = (values.get("activation_checkpointing"), values.get("fsdp_activation_checkpointing"))
        return cls(Strategy.FSDP, activation_checkpointing=any(str(value).lower() in _YES for value in switches))

    def __str__(self) -> str:
        if self.strategy is None:
            return "an unknown engine"
        return self.strategy.value if self.stage is None else f"{self.strategy.value}-{self.stage}"


UNKNOWN_SETUP = LaunchSetup(None)


class ConfigurationKind(StrEnum):
    """The library whose options a configuration file holds."""

    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    FSDP = "fsdp"


class Configuration(NamedTuple):
    """A configuration file, by the name that a script or a command gives it."""

    name: str
    kind: ConfigurationKind


class Launch(NamedTuple):
    """A place that says how the script is run: a call in it, or a command in its header, docstring or comments.

    Attributes:
        setup: what the place itself says, completed by the configuration file once that is read.
        configuration: the file that says the rest.
        script: the file name of the script that a command starts; empty for a call in the script.
        arguments: the file from which a command has the script read its arguments, or the placeholder for options that
            the command leaves out (`$@`); empty if there is neither.
        adapters: the option of a command that asks for PEFT adapters; empty if there is none.
        conditional: whether a call stands under a test, so that the script is run in other ways too.
        checkpointing: whether a command switches gradient checkpointing on.
        unread: what decides but was not read or understood: a file, or the options that a command leaves out.
    """

    text: str
    line: int
    setup: LaunchSetup
    configuration: Configuration | None = None
    script: str = ""
    arguments: str = ""
    adapters: str = ""
    conditional: bool = False
    checkpointing: bool = False
    unread: str = ""

    @property
    def place(self) -> str:
        """Its text and line, as messages name it."""
        return f"{self.text} on line {self.line}"
