"""Devices by name and from files, and the memory that torch's CUDA allocator takes of them for a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.devices import COMMON, DEVICES, Device, block_bytes, segment_bytes

FILE = """name = "Mine"
flops = 1e14
bandwidth = 1e12
memory = 24_000_000_000
link = 32e9
source = "measured"
"""


def test_every_device_names_its_source() -> None:
    assert len(DEVICES) > 20
    assert [Device.of(name) for name in DEVICES] == list(DEVICES.values())
    assert sorted(COMMON, key=lambda device: device.memory) == list(COMMON)
    assert all(device.source and device.flops > device.bandwidth > device.link for device in DEVICES.values())


def test_a_name_in_any_case_and_a_file(tmp_path: Path) -> None:
    assert Device.of("mi300x") is Device.of("MI300X")
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    assert (Device.of(str(path)).flops, Device.of(str(path)).workspace) == (1e14, 0)
    path.write_text(f"{FILE}capability = 8.6\n")
    assert Device.of(str(path)).workspace == Device.of("A100").workspace


def test_the_workspace_of_two_threads_is_known_of_cuda_devices() -> None:
    assert {Device.of(name).workspace for name in ("H100", "H200")} == {2 * (32 + 1) * 2**20}
    assert {Device.of(name).workspace for name in ("A100", "L40S", "4090")} == {2 * (8_519_680 + 2**20)}
    assert Device.of("MI300X").workspace == 0


REPORTED = {
    "T4": 14_930 * 2**20,
    "V100": 16_130 * 2**20,
    "L4": 22_561 * 2**20,
    "A10G": 22_587 * 2**20,
    "3090": 24_259 * 2**20,
    "A6000": 48_676 * 2**20,
    "H100 NVL": 99_456_909_312,
}
"""The `total_memory` that torch has reported of such cards."""


@pytest.mark.parametrize("name", REPORTED)
def test_no_card_has_less_memory_than_is_planned_with(name: str) -> None:
    assert 0.93 * REPORTED[name] < Device.of(name).memory <= REPORTED[name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("name = ", "is not TOML"),
        ('name = "Mine"\n', "lacks flops, bandwidth"),
        (FILE.replace("1e14", '"fast"'), "flops in"),
        (FILE.replace("1e14", "0"), "flops in"),
    ],
)
def test_a_file_that_describes_none_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlanningError, match=said):
        Device.of(str(path))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PlanningError, match="no device is called 'H1000': give one of T4, V100, L4"):
        Device.of("H1000")


SPELLINGS = {
    "T4": "Tesla T4",
    "V100": "Tesla V100-SXM2-16GB",
    "V100 PCIe 32GB": "Tesla V100-PCIE-32GB",
    "L4": "NVIDIA L4",
    "A10G": "NVIDIA A10G",
    "3090": "NVIDIA GeForce RTX 3090",
    "4090": "RTX 4090, rtx4090, rtx-4090, NVIDIA GeForce RTX 4090",
    "5090": "GeForce RTX5090",
    "A6000": "NVIDIA RTX A6000",
    "L40S": "NVIDIA L40S",
    "A100": "a100, NVIDIA A100-SXM4-80GB",
    "A100 40GB": "NVIDIA A100-SXM4-40GB, a100_40gb, A100-40G",
    "A100 PCIe": "NVIDIA A100 80GB PCIe",
    "H100": "h100-sxm, h100sxm5, NVIDIA H100 80GB HBM3",
    "H100 PCIe": "NVIDIA H100 PCIe",
    "H200": "NVIDIA H200",
    "B200": "NVIDIA B200",
    "MI300X": "AMD Instinct MI300X, mi300x",
}


@pytest.mark.parametrize(
    ("name", "card"), [(name, card) for name, cards in SPELLINGS.items() for card in cards.split(", ")]
)
def test_a_card_is_known_by_any_usual_spelling(name: str, card: str) -> None:
    assert Device.like(card) is Device.of(card) is DEVICES[name.lower()]


@pytest.mark.parametrize(
    "card",
    [
        "NVIDIA GH200 480GB",
        "RTX 3090 Ti",
        "RTX 4090 Laptop GPU",
        "RTX 6000 Ada",
        "A100-SXM-64GB",
        "A100 MIG 1g.5gb",
        "",
    ],
)
def test_a_card_that_is_none_of_them_is_not_taken_for_one(card: str) -> None:
    with pytest.raises(PlanningError, match=f"no figures are known of {card}"):
        Device.like(card)


MIB = 2**20
ALLOCATED = {
    0: 0,
    1: 512,
    513: 1024,
    MIB - 1: MIB,
    5 * MIB + 1: 5 * MIB + 512,  # of a segment of 20 MiB
    49 * MIB: 50 * MIB,  # 1 MiB is not split off
    49 * MIB - 512: 49 * MIB - 512,
    197 * MIB // 4: 50 * MIB,  # the hidden states of a ViT-L with 128 images
    100 * MIB: 100 * MIB,
}


def test_a_tensor_takes_what_is_not_split_off_its_segment() -> None:
    assert {size: block_bytes(size) for size in ALLOCATED} == ALLOCATED


@pytest.mark.parametrize(
    ("size", "segment"), [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 1, 20), (10 * MIB, 10), (10 * MIB + 1, 12)]
)
def test_segments_are_as_large_as_the_allocator_asks_for(size: int, segment: int) -> None:
    assert segment_bytes(size) == segment * MIB
