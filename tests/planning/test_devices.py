"""Devices by name and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.devices import DEVICES, device_like, device_of

FILE = """name = "Mine"
flops = 1e14
bandwidth = 1e12
memory = 24_000_000_000
link = 32e9
source = "measured"
"""


def test_every_device_names_its_source() -> None:
    assert len(DEVICES) == 6
    assert all(device.source and device.flops > device.bandwidth > device.link for device in DEVICES.values())


def test_a_name_in_any_case_and_a_file(tmp_path: Path) -> None:
    assert device_of("mi300x") is device_of("MI300X")
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    assert (device_of(str(path)).flops, device_of(str(path)).workspace) == (1e14, 0)
    path.write_text(f"{FILE}capability = 8.6\n")
    assert device_of(str(path)).workspace == device_of("A100").workspace


def test_the_workspace_of_two_threads_is_known_of_cuda_devices() -> None:
    assert {device_of(name).workspace for name in ("H100", "H200")} == {2 * (32 + 1) * 2**20}
    assert {device_of(name).workspace for name in ("A100", "L40S", "4090")} == {2 * (8_519_680 + 2**20)}
    assert device_of("MI300X").workspace == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("name = ", "is no TOML"),
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
        device_of(str(path))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(PlanningError, match="no device is called 'H1000': give one of H100"):
        device_of("H1000")


@pytest.mark.parametrize("card", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X"])
def test_a_card_is_known_by_the_word_for_it_in_its_name(card: str) -> None:
    assert device_like(card).name in card


@pytest.mark.parametrize("card", ["NVIDIA GH200 480GB", "Tesla T4"])
def test_a_card_of_another_name_is_not_known(card: str) -> None:
    with pytest.raises(PlanningError, match=f"no figures are known of {card}"):
        device_like(card)
