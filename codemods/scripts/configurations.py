"""What a launcher's configuration file says of the strategy: accelerate's YAML or JSON, DeepSpeed's and FSDP's JSON.

Files are texts here; where they lie, and whether they may be read, is decided elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ckpt_surgery.codemods.facts.launch_facts import UNKNOWN_SETUP, ConfigurationKind, LaunchSetup, Strategy
from ckpt_surgery.codemods.scripts.yaml_subset import read_yaml

_STRATEGIES = {"NO": Strategy.ONE_PROCESS, "DEEPSPEED": Strategy.ZERO, "FSDP": Strategy.FSDP}
_TRUE = {"true", "yes", "on", "y", "t", "1"}


def read_setup(text: str, kind: ConfigurationKind) -> LaunchSetup | None:
    """The setup that a file asks for; None if the file is not understood."""
    values = _read(text)
    if values is None:
        return None
    match kind:
        case ConfigurationKind.ACCELERATE:
            return _accelerate(values)
        case ConfigurationKind.DEEPSPEED:
            return deepspeed_setup(values)
    return fsdp_setup(values)


def deepspeed_file(text: str) -> str:
    """The DeepSpeed configuration that an accelerate configuration names; empty if it names none."""
    section = (_read(text) or {}).get("deepspeed_config")
    name = section.get("deepspeed_config_file") if isinstance(section, Mapping) else None
    return name if isinstance(name, str) and name != "none" else ""


def deepspeed_setup(values: Mapping[str, object]) -> LaunchSetup:
    """The setup of a DeepSpeed configuration: its stage is `zero_optimization.stage`, by default 0."""
    section = values.get("zero_optimization", {})
    stage = section.get("stage", 0) if isinstance(section, Mapping) else None
    return LaunchSetup(Strategy.ZERO, whole_number(stage))


def fsdp_setup(values: Mapping[str, object]) -> LaunchSetup:
    """The setup of a Trainer's `fsdp_config`, whose keys may begin with `fsdp_`."""
    switches = (values.get("activation_checkpointing"), values.get("fsdp_activation_checkpointing"))
    return LaunchSetup(Strategy.FSDP, activation_checkpointing=any(is_true(switch) for switch in switches))


def is_true(value: object) -> bool:
    """Whether a value of a configuration means yes, as accelerate and transformers read it."""
    return str(value).lower() in _TRUE


def whole_number(value: object) -> int | None:
    """A stage as a number; None for `auto` and anything else."""
    return int(str(value)) if str(value).isdecimal() and len(str(value)) < 3 else None


def _accelerate(values: Mapping[str, object]) -> LaunchSetup:
    name = values.get("distributed_type")
    if not isinstance(name, str):
        return UNKNOWN_SETUP
    strategy = _STRATEGIES.get(name) or (Strategy.DDP if name.startswith("MULTI_") else Strategy.OTHER)
    section = values.get({Strategy.ZERO: "deepspeed_config", Strategy.FSDP: "fsdp_config"}.get(strategy, ""))
    options: Mapping[str, object] = section if isinstance(section, Mapping) else {}
    if strategy is Strategy.FSDP:
        return fsdp_setup(options)
    return LaunchSetup(strategy, whole_number(options.get("zero_stage")) if strategy is Strategy.ZERO else None)


def _read(text: str) -> Mapping[str, object] | None:
    if not text.lstrip().startswith("{"):
        return read_yaml(text)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
