"""What devices can do, from their makers' data sheets, to estimate the time of what they are given."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.cuda_memory import cublas_workspace


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        name: as people call it.
        flops: dense products of bfloat16 a second, without sparsity.
        bandwidth: bytes a second from and to its own memory.
        memory: bytes of its own memory.
        link: bytes a second to the host, in one direction.
        source: where the figures are from.
        capability: the compute capability of a CUDA device; 0 for another, of which no workspace is known.
    """

    name: str
    flops: float
    bandwidth: float
    memory: int
    link: float
    source: str
    capability: float = 0.0

    @property
    def workspace(self) -> int:
        """The bytes that a training holds for the workspace of matrix products."""
        return cublas_workspace(self.capability) if self.capability else 0


_NUMBERS = ("flops", "bandwidth", "memory", "link")
_GB = 10**9
DEVICES: Mapping[str, Device] = {
    device.name.lower(): device
    for device in (
        Device("H100", 989.4e12, 3.35e12, 80 * _GB, 64e9, "NVIDIA H100 data sheet, SXM5; PCIe 5.0 x16", 9.0),
        Device("H200", 989.4e12, 4.8e12, 141 * _GB, 64e9, "NVIDIA H200 data sheet, SXM; PCIe 5.0 x16", 9.0),
        Device("A100", 312e12, 2.039e12, 80 * _GB, 32e9, "NVIDIA A100 data sheet, 80 GB SXM4; PCIe 4.0 x16", 8.0),
        Device("L40S", 362.05e12, 864e9, 48 * _GB, 32e9, "NVIDIA L40S data sheet; PCIe 4.0 x16", 8.9),
        Device("4090", 165.2e12, 1.008e12, 24 * _GB, 32e9, "NVIDIA Ada GPU architecture paper; PCIe 4.0 x16", 8.9),
        Device("MI300X", 1307.4e12, 5.3e12, 192 * _GB, 64e9, "AMD Instinct MI300X data sheet; PCIe 5.0 x16"),
    )
}
"""The devices that are known, by their names in lower case."""


def device_of(name: str) -> Device:
    """The device of this name, or the one that a TOML file with the fields of `Device` describes.

    Raises:
        PlanningError: no such device, or a file that does not describe one.
    """
    if known := DEVICES.get(str(name).lower()):
        return known
    path = Path(str(name))
    if path.suffix != ".toml":
        names = ", ".join(device.name for device in DEVICES.values())
        raise PlanningError(f"no device is called {name!r}: give one of {names}, or a .toml file that describes one")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanningError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanningError(f"{path} is no TOML: {error}") from None
    missing = [field.name for field in fields(Device) if field.default is MISSING and field.name not in values]
    if missing:
        raise PlanningError(f"{path} lacks {', '.join(missing)}: give flops, bandwidth, memory and link in base units")
    numbers = {name: values[name] for name in (*_NUMBERS, "capability") if name in values}
    wrong = [name for name, value in numbers.items() if type(value) not in (int, float) or value <= 0]
    if wrong:
        raise PlanningError(f"{wrong[0]} in {path} is {numbers[wrong[0]]!r}: give a number above 0")
    return Device(str(values["name"]), **numbers, source=str(values["source"]))


def device_like(card: str) -> Device:
    """The device that is meant by the name that a driver has for a card, such as "NVIDIA H100 80GB HBM3".

    Raises:
        PlanningError: no figures of it are known.
    """
    for word in re.findall(r"\w+", card.lower()):
        if word in DEVICES:
            return DEVICES[word]
    raise PlanningError(f"no figures are known of {card}: name a device, or a .toml file that describes one")
