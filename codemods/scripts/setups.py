"""How a script is run, once the configuration files that it names have been read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.launch_facts import UNKNOWN_SETUP, Launch, LaunchSetup, Strategy
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.scripts.configurations import read_setup

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
    """A launch with what its configuration file adds to what it says itself."""
    file, own = launch.configuration, launch.setup
    if file is None:
        return KnownLaunch(launch, own)
    text = read(path, file.name)
    setup = read_setup(text, file.kind, functools.partial(read, path)) if text is not None else None
    if setup is None:
        return KnownLaunch(launch, own, file.name)
    if own.strategy not in (None, setup.strategy):
        return KnownLaunch(launch, own)
    doubled = own.activation_checkpointing or setup.activation_checkpointing
    stage = setup.stage if own.stage is None else own.stage
    return KnownLaunch(launch, LaunchSetup(setup.strategy, stage, doubled))
