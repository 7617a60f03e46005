"""How a training script is launched, as far as the script itself says: plain frozen values, no decisions."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

CONFIGURATION_SUFFIXES = (".yaml", ".yml", ".json")


class Strategy(StrEnum):
    """What spreads a model's training over processes."""

    ONE_PROCESS = "one process"
    DDP = "DistributedDataParallel"
    ZERO = "DeepSpeed ZeRO"
    FSDP = "FSDP"
    OTHER = "another engine"


class LaunchSetup(NamedTuple):
    """A strategy and those of its options that matter to checkpointing."""

    strategy: Strategy | None
    """None where nothing shows it."""
    stage: int | None = None
    """The stage of ZeRO; None where nothing shows it, and for other strategies."""
    activation_checkpointing: bool = False
    """Whether FSDP's own checkpointing is switched on."""

    def __str__(self) -> str:
        """The words for it in a message."""
        if self.strategy is None:
            return "an unknown engine"
        return self.strategy.value if self.stage is None else f"{self.strategy.value}-{self.stage}"


UNKNOWN_SETUP = LaunchSetup(None)


class ConfigurationKind(StrEnum):
    """Whose configuration a file is."""

    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    FSDP = "fsdp"


class Configuration(NamedTuple):
    """A configuration file as a script or a command names it."""

    name: str
    kind: ConfigurationKind


class Launch(NamedTuple):
    """One place that says how the script is run: a call in it, or a command in its header, docstring or comments."""

    text: str
    line: int
    setup: LaunchSetup
    """What the place itself says."""
    configuration: Configuration | None = None
    """The file that says the rest."""
    script: str = ""
    """The file name of the script that a command starts; empty for a call in the script."""
    arguments: str = ""
    """The file from which a command has the script read its arguments, or the word that stands for options left out;
    empty without either."""
    adapters: str = ""
    """The option of a command that asks for PEFT adapters; empty without one."""
    conditional: bool = False
    """Whether a call stands under a test: the script is then run in other ways too."""
    checkpointing: bool = False
    """Whether a command switches gradient checkpointing on."""
    unread: str = ""
    """What decides and was not read or not understood: a file, or the options that a command leaves out."""

    @property
    def place(self) -> str:
        """Where it stands, as messages say it."""
        return f"{self.text} on line {self.line}"
