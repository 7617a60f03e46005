"""How a script is run, once the configuration files that it names have been read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.launch_facts import (
    UNKNOWN_SETUP,
    Configuration,
    ConfigurationKind,
    Launch,
    LaunchSetup,
    Strategy,
)
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.scripts.configurations import deepspeed_file, read_setup

ConfigurationReader: TypeAlias = Callable[[str, str], str | None]
"""The text of a configuration file, by the script that names it and the name; None if it cannot be read."""

_REPLACED = (Strategy.DDP, Strategy.ONE_PROCESS, None)


class KnownLaunch(NamedTuple):
    """A launch with all that its configuration file says.

    `unread` is what decides and was not read or not understood: a file, or the options that a command leaves out.
    """

    launch: Launch
    setup: LaunchSetup
    unread: str = ""

    @property
    def place(self) -> str:
        """Where it stands, as messages say it."""
        return f"{self.launch.text} on line {self.launch.line}"


def known_launches(path: str, script: ScriptFacts, read: ConfigurationReader) -> tuple[KnownLaunch, ...]:
    """Every way in which a script is run, as far as the script and its files show.

    Commands that start another script do not count. Where the script itself chooses DeepSpeed or FSDP, a command
    without either only starts the processes.
    """
    resolved = [_resolved(path, launch, read) for launch in script.launches]
    calls = [known for known in resolved if not known.launch.script]
    started = [known for known in resolved if known.launch.script == PurePath(path).name]
    if calls:
        started = [known for known in started if known.unread or known.setup.strategy not in _REPLACED]
    return (*calls, *map(_doubted, started))


def may_need_reentrance(known: KnownLaunch, script: ScriptFacts) -> bool:
    """Whether a launch trains adapters of PEFT, or may, under a ZeRO that is of stage 3 or may be."""
    adapters = known.launch.adapters or script.sign("adapters", "some_adapters")
    return known.setup.strategy is Strategy.ZERO and known.setup.stage in (3, None) and bool(adapters)


def setup_text(setup: LaunchSetup) -> str:
    """The words for a setup in a message."""
    if setup.strategy is None:
        return "an unknown engine"
    return setup.strategy.value if setup.stage is None else f"{setup.strategy.value}-{setup.stage}"


def _doubted(known: KnownLaunch) -> KnownLaunch:
    """A launch whose arguments are not all written out may choose DeepSpeed or FSDP there."""
    if known.launch.arguments and known.setup.strategy is Strategy.DDP:
        return KnownLaunch(known.launch, UNKNOWN_SETUP, known.launch.arguments)
    return known


def _resolved(path: str, launch: Launch, read: ConfigurationReader) -> KnownLaunch:
    file = launch.configuration
    if file is None:
        return KnownLaunch(launch, launch.setup)
    read_from_file = _read(path, file, read)
    if read_from_file is None:
        return KnownLaunch(launch, launch.setup, file.name)
    own = launch.setup
    if own.strategy not in (None, read_from_file.strategy):
        return KnownLaunch(launch, own)
    setup = LaunchSetup(
        read_from_file.strategy,
        own.stage if own.stage is not None else read_from_file.stage,
        own.activation_checkpointing or read_from_file.activation_checkpointing,
    )
    return KnownLaunch(launch, setup)


def _read(path: str, file: Configuration, read: ConfigurationReader) -> LaunchSetup | None:
    text = read(path, file.name)
    setup = read_setup(text, file.kind) if text is not None else None
    if text is None or setup is None or file.kind is not ConfigurationKind.ACCELERATE:
        return setup
    inner = deepspeed_file(text) if setup.strategy is Strategy.ZERO and setup.stage is None else ""
    if not inner:
        return setup
    inner_text = read(path, inner)
    return read_setup(inner_text, ConfigurationKind.DEEPSPEED) if inner_text is not None else setup
