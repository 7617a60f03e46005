"""Accelerators: peak rates and memory from their makers' data sheets, and what PyTorch's allocator takes there.

Hopper's data sheets give products with sparsity, which are halved here. Where ECC takes part of the memory, as on
server boards with GDDR6, `memory` is what torch reports. cuDNN's workspace is not counted: cuDNN chooses it at run
time for each shape, and publishes no rule.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from ckpt_surgery.errors import PlanningError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        name: its common name.
        flops: dense bfloat16 operations per second, fp16 if it has no bfloat16, without sparsity.
        bandwidth: bytes per second to and from its own memory.
        memory: bytes of its own memory.
        link: bytes per second to the host, in one direction.
        source: where the figures are from.
        capability: the compute capability of a CUDA device; 0 for others, whose workspace is not known.
    """

    name: str
    flops: float
    bandwidth: float
    memory: int
    link: float
    source: str
    capability: float = 0.0

    @property
    def room(self) -> int:
        """The bytes that a step may take: the memory less the margin for what is not counted."""
        return int(self.memory * (1 - MARGIN))

    @property
    def title(self) -> str:
        """The name with the memory: "4090 (24 GB)"."""
        return f"{self.name} ({self.memory / 10**9:.0f} GB)"

    @property
    def workspace(self) -> int:
        """The bytes that training holds as workspace for matrix products on a CUDA device, else 0.

        The two threads that multiply, the forward's and autograd's for the backward, each have a handle with two
        workspaces: cuBLAS's, 32 MiB at compute capability 9.0 and `:4096:2:16:8` KiB at all others, and cuBLASLt's of
        1 MiB (`parseChosenWorkspaceSize` and `parseCUDABlasLtWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp
        of pytorch at 26a39059). On one H200, 69 MB were missing in every language model, and this is 69,206,016 bytes.
        The variables CUBLAS_WORKSPACE_CONFIG and CUBLASLT_WORKSPACE_SIZE, which change the sizes, are not read.
        """
        cublas = 32 * _MIB if self.capability == 9.0 else (2 * 4096 + 8 * 16) * 1024
        return 2 * (cublas + _MIB) if self.capability else 0

    @classmethod
    def like(cls, card: str) -> Device:
        """Find a device by name, however people or drivers spell it: "rtx4090", "NVIDIA H100 80GB HBM3".

        Variants with the same name are distinguished by the size in the name.

        Raises:
            PlanningError: no figures are known of this device.
        """
        words, form, memory = _parsed(card)
        variants = [(device, *_parsed(device.name)) for device in DEVICES.values()]
        variants = [each for each in variants if each[1] == words]
        form = form if any(each[2] == form for each in variants) else ""  # an unknown form is ignored
        for device, _, its_form, _ in variants:
            if its_form == form and abs(device.memory - (memory or device.memory)) <= 0.1 * device.memory:
                return device
        raise PlanningError(f"no figures are known of {card}: name a device, or a .toml file that describes one")

    @classmethod
    def of(cls, name: str) -> Device:
        """Return the device of this name, as `like` reads it, or of a TOML file with the fields of `Device`.

        Raises:
            PlanningError: there is no such device, or the file does not describe one.
        """
        path = Path(str(name))
        if path.suffix != ".toml":
            try:
                return cls.like(str(name))
            except PlanningError:
                raise PlanningError(
                    f"no device is called {name!r}: give one of {NAMES}, or a .toml file that describes one"
                ) from None
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanningError(f"{path} cannot be read: {error.strerror}") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PlanningError(f"{path} is not TOML: {error}") from None
        missing = [field.name for field in fields(Device) if field.default is MISSING and field.name not in values]
        if missing:
            raise PlanningError(
                f"{path} lacks {', '.join(missing)}: give flops, bandwidth, memory and link in base units"
            )
        names = ("flops", "bandwidth", "memory", "link", "capability")
        numbers = {name: values[name] for name in names if name in values}
        wrong = [name for name, value in numbers.items() if type(value) not in (int, float) or value <= 0]
        if wrong:
            raise PlanningError(f"{wrong[0]} in {path} is {numbers[wrong[0]]!r}: give a number above 0")
        return cls(str(values["name"]), **numbers, source=str(values["source"]))


_GB, _MIB = 10**9, 2**20
_T4, _24_GB_ECC = 14_930 * _MIB, 22_560 * _MIB
"""Bytes, as `torch.cuda.get_device_properties` and the message of an OutOfMemoryError ("22.03 GiB") give them."""
_GA102 = "NVIDIA Ampere GA102 architecture paper, version 2"
_V100, _DGX = "NVIDIA V100 data sheet", "NVIDIA DGX B200 data sheet"
_BLACKWELL = "NVIDIA RTX Blackwell architecture paper"
_GEN3, _GEN4, _GEN5 = 16e9, 32e9, 64e9
"""Bytes per second of sixteen PCIe lanes in one direction, as the makers round them."""
DEVICES: Mapping[str, Device] = {
    device.name.lower(): device
    for device in (
        Device("T4", 65e12, 320e9, _T4, _GEN3, "NVIDIA T4 data sheet; products of fp16, as it has none of bf16", 7.5),
        Device("V100", 125e12, 900e9, 16 * _GB, _GEN3, f"{_V100}, SXM2; products of fp16", 7.0),
        Device("V100 32GB", 125e12, 900e9, 32 * _GB, _GEN3, f"{_V100}, SXM2; products of fp16", 7.0),
        Device("V100 PCIe", 112e12, 900e9, 16 * _GB, _GEN3, f"{_V100}, PCIe; products of fp16", 7.0),
        Device("V100 PCIe 32GB", 112e12, 900e9, 32 * _GB, _GEN3, f"{_V100}, PCIe; products of fp16", 7.0),
        Device("L4", 121e12, 300e9, _24_GB_ECC, _GEN4, "NVIDIA L4 data sheet; PCIe 4.0 x16", 8.9),
        Device("A10", 125e12, 600e9, _24_GB_ECC, _GEN4, "NVIDIA A10 data sheet; PCIe 4.0 x16", 8.6),
        Device("A10G", 70e12, 600e9, _24_GB_ECC, _GEN4, "NVIDIA A10G data sheet, published by AWS; PCIe 4.0 x16", 8.6),
        Device("3090", 71e12, 936e9, 24 * _GB, _GEN4, f"{_GA102}, appendix A; PCIe 4.0 x16", 8.6),
        Device("4090", 165.2e12, 1.008e12, 24 * _GB, _GEN4, "NVIDIA Ada GPU architecture paper; PCIe 4.0 x16", 8.9),
        Device("5090", 209.5e12, 1.792e12, 32 * _GB, _GEN5, f"{_BLACKWELL}; PCIe 5.0 x16", 12.0),
        Device("A6000", 154.8e12, 768e9, 48 * _GB, _GEN4, f"{_GA102}, table 3; PCIe 4.0 x16", 8.6),
        Device("L40S", 362.05e12, 864e9, 48 * _GB, _GEN4, "NVIDIA L40S data sheet; PCIe 4.0 x16", 8.9),
        Device("A100", 312e12, 2.039e12, 80 * _GB, _GEN4, "NVIDIA A100 data sheet, 80 GB SXM4; PCIe 4.0 x16", 8.0),
        Device("A100 40GB", 312e12, 1.555e12, 40 * _GB, _GEN4, "NVIDIA A100 data sheet, 40 GB; PCIe 4.0 x16", 8.0),
        Device("A100 PCIe", 312e12, 1.935e12, 80 * _GB, _GEN4, "NVIDIA A100 data sheet, 80 GB PCIe 4.0 x16", 8.0),
        Device("A100 PCIe 40GB", 312e12, 1.555e12, 40 * _GB, _GEN4, "NVIDIA A100 data sheet, 40 GB PCIe 4.0 x16", 8.0),
        Device("H100", 989.4e12, 3.35e12, 80 * _GB, _GEN5, "NVIDIA H100 data sheet, SXM5; PCIe 5.0 x16", 9.0),
        Device("H100 PCIe", 756e12, 2e12, 80 * _GB, _GEN5, "NVIDIA H100 data sheet, PCIe 5.0 x16", 9.0),
        Device("H100 NVL", 835.5e12, 3.9e12, 94 * _GB, _GEN5, "NVIDIA H100 data sheet, NVL; PCIe 5.0 x16", 9.0),
        Device("H200", 989.4e12, 4.8e12, 141 * _GB, _GEN5, "NVIDIA H200 data sheet, SXM; PCIe 5.0 x16", 9.0),
        Device("H200 NVL", 835.5e12, 4.8e12, 141 * _GB, _GEN5, "NVIDIA H200 data sheet, NVL; PCIe 5.0 x16", 9.0),
        Device("B200", 2250e12, 8e12, 180 * _GB, _GEN5, f"{_DGX}, one of eight; PCIe 5.0 x16", 10.0),
        Device("MI300X", 1307.4e12, 5.3e12, 192 * _GB, _GEN5, "AMD Instinct MI300X data sheet; PCIe 5.0 x16"),
    )
}
"""The known devices, by name in lower case. A name that several begin with means the first of them."""
COMMON = tuple(DEVICES[name] for name in ("t4", "4090", "5090", "a6000", "h100", "h200", "b200", "mi300x"))
"""A common card of each memory size, the smallest first."""
MARGIN = 0.08
"""The share of a card's memory left for what is not counted: its context, the allocator, most workspace."""
NAMES = ", ".join(device.name for device in DEVICES.values() if " " not in device.name)
_FORM = re.compile(r"(sxm|pcie|nvl)\d?")
_MEMORY = re.compile(r"(?<![a-z\d.])(\d+)\s*g(?:i?b)?(?![a-z\d.])")
_NOISE = re.compile(r"nvidia|amd|geforce|tesla|quadro|rtx|instinct|(?<![a-z])(?:(?:hbm|gddr)\d\w?|oam|gpu)(?![a-z])")
"""Parts of a card's name that do not help to identify it."""


def _parsed(card: str) -> tuple[list[str], str, int]:
    """Split a card's name into identifying words, its form such as "pcie", and its memory in bytes, else 0."""
    name = _NOISE.sub(" ", card.lower())
    form = _FORM.search(name)
    memory = _MEMORY.search(_FORM.sub(" ", name))
    words = re.findall(r"\w+", _MEMORY.sub(" ", _FORM.sub(" ", name).replace("_", " ")))
    return words, form[1] if form else "", int(memory[1]) * _GB if memory else 0


def segment_bytes(size: int) -> int:
    """Return the bytes that torch requests from the driver when no cached segment has room for `size` bytes.

    An OutOfMemoryError says that it tried to allocate this many. 2 MiB for up to 1 MiB, 20 MiB below 10 MiB, then
    multiples of 2 MiB: `get_allocation_size` in c10/cuda/CUDACachingAllocator.cpp of pytorch at eb42ad6ec, with the
    sizes of c10/core/AllocatorConfig.h at cf30153c4 (2.13.0). PYTORCH_ALLOC_CONF, which changes it, is not read.
    """
    if size <= _MIB:
        return 2 * _MIB
    return 20 * _MIB if size < 10 * _MIB else -(-size // (2 * _MIB)) * 2 * _MIB


def block_bytes(size: int) -> int:
    """Return the bytes that torch counts as allocated for a tensor of `size` bytes in its own segment.

    Sizes are rounded up to 512 bytes. The rest of a segment is split off, unless it is at most 1 MiB of a large one:
    `round_size` and `should_split` in the same file. So a tensor of 49.25 MiB takes 50. A tensor that reuses the block
    of another may take up to 1 MiB more or less than this.
    """
    if not size:
        return 0
    rounded = -(-size // 512) * 512
    left = segment_bytes(rounded) - rounded
    return rounded + left if rounded > _MIB and left <= _MIB else rounded
