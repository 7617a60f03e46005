"""Work out how a script is run: the setup of a launch, completed by the configuration file that it names.

These files are accelerate's YAML or JSON, or the JSON of DeepSpeed or FSDP. Only their texts are needed here: the
caller decides where they are, and whether they may be read.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import TypeAlias

from ckpt_surgery.codemods.facts.launch_facts import UNKNOWN_SETUP, ConfigurationKind, Launch, LaunchSetup, Strategy
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts

ConfigurationReader: TypeAlias = Callable[[str, str], str | None]
"""Takes the script and the name that it gives, and returns the file's text; None if it cannot be read."""

_OVERRIDDEN = (Strategy.DDP, Strategy.ONE_PROCESS, None)
"""What a command may ask for that a script overrides if it chooses DeepSpeed or FSDP itself."""
_LONGEST = 100_000
"""No launcher's configuration has more characters, and YAML is slow to read."""


def known_launches(path: str, script: ScriptFacts, read: ConfigurationReader) -> tuple[Launch, ...]:
    """Return every way in which a script is run, as far as the script and its files show.

    Commands that start another script do not count. Where the script itself chooses DeepSpeed or FSDP, a command
    without either only starts the processes.
    """
    launches = [_resolved(path, launch, read) for launch in script.launches]
    calls = [launch for launch in launches if not launch.script]
    started = [launch for launch in launches if launch.script == PurePath(path).name]
    if calls:
        started = [launch for launch in started if launch.unread or launch.setup.strategy not in _OVERRIDDEN]
    for at, launch in enumerate(started):
        if launch.arguments and launch.setup.strategy is Strategy.DDP:  # hidden arguments may choose another
            started[at] = launch._replace(setup=UNKNOWN_SETUP, unread=launch.arguments)
    return (*calls, *started)


def _resolved(path: str, launch: Launch, read: ConfigurationReader) -> Launch:
    """Return a launch with its own setup, completed by its configuration file."""
    file, own = launch.configuration, launch.setup
    if file is None:
        return launch
    text = read(path, file.name)
    setup = read_setup(text, file.kind, functools.partial(read, path)) if text is not None else None
    if setup is None:
        return launch._replace(unread=file.name)
    if own.strategy not in (None, setup.strategy):
        return launch
    checkpointing = own.activation_checkpointing or setup.activation_checkpointing
    stage = setup.stage if own.stage is None else own.stage
    return launch._replace(setup=LaunchSetup(setup.strategy, stage, checkpointing))


def read_setup(text: str, kind: ConfigurationKind, read: Callable[[str], str | None]) -> LaunchSetup | None:
    """Return the setup that a file asks for; None if the file is not understood.

    Args:
        text: the text of the file.
        kind: which program's configuration it is.
        read: returns the text of another file that it names: accelerate's may name one of DeepSpeed.
    """
    values = _values(text)
    if values is None:
        return None
    match kind:
        case ConfigurationKind.DEEPSPEED:
            return LaunchSetup.of_deepspeed(values)
        case ConfigurationKind.FSDP:
            return LaunchSetup.of_fsdp(values)
    name = values.get("distributed_type")
    if name is False:
        name = "NO"  # which YAML takes for a boolean unless it is quoted
    if not isinstance(name, str):
        return UNKNOWN_SETUP
    section = values.get(f"{name.lower()}_config")
    options = section if isinstance(section, Mapping) else {}
    if name == "FSDP":
        return LaunchSetup.of_fsdp(options)
    if name == "DEEPSPEED":
        setup, file = LaunchSetup.of_zero(options), options.get("deepspeed_config_file")
        inner = read(file) if setup.stage is None and isinstance(file, str) and file not in ("", "none") else None
        return setup if inner is None else read_setup(inner, ConfigurationKind.DEEPSPEED, read)
    if name == "NO":
        return LaunchSetup(Strategy.ONE_PROCESS)
    return LaunchSetup(Strategy.DDP if name.startswith("MULTI_") else Strategy.OTHER)


def _values(text: str) -> Mapping[str, object] | None:
    """Return a file's mapping; None for anything else, and for anchors and tags: a few can fill the memory."""
    import yaml  # few runs meet a configuration

    if len(text) > _LONGEST:
        return None
    try:
        if text.lstrip().startswith("{"):
            values = json.loads(text)
        elif any(isinstance(token, yaml.AnchorToken | yaml.TagToken) for token in yaml.scan(text, yaml.SafeLoader)):
            return None
        else:
            values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if values is None:
        return {}
    return values if isinstance(values, dict) else None
