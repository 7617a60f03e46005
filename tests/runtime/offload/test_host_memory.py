"""The host's free memory: the kernel's figure, or the tightest limit of control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_surgery.runtime.offload.host_memory import HostMemory, processes_on_host

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nPages: x\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_it_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert HostMemory.now(tree(tmp_path, {})) == HostMemory(8 * GIB, 16 * GIB)


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/a/b", {"a/b/memory.max": "max\n", "a/memory.max": f"{4 * GIB}\n", "a/memory.current": f"{3 * GIB}\n"}),
        (
            "4:cpu,memory:/a",
            {"memory/a/memory.limit_in_bytes": f"{4 * GIB}", "memory/a/memory.usage_in_bytes": f"{3 * GIB}"},
        ),
    ],
    ids=["version 2, an outer group", "version 1"],
)
def test_a_control_group_may_have_less(tmp_path: Path, group: str, files: dict[str, str]) -> None:
    limits = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert HostMemory.now(tree(tmp_path, {"proc/self/cgroup": f"7:cpu:/\n{group}\n", **limits})) == HostMemory(
        GIB, 4 * GIB
    )


def test_caches_of_a_group_can_be_dropped(tmp_path: Path) -> None:
    group = {"memory.max": f"{4 * GIB}", "memory.current": f"{3 * GIB}", "memory.stat": f"anon 1\ninactive_file {GIB}"}
    files = {f"sys/fs/cgroup/{name}": text for name, text in group.items()}
    assert HostMemory.now(tree(tmp_path, {"proc/self/cgroup": "0::/\n", **files})) == HostMemory(2 * GIB, 4 * GIB)


@pytest.mark.parametrize("limit", ["9223372036854771712", "max", ""])
def test_a_group_without_a_limit_changes_nothing(tmp_path: Path, limit: str) -> None:
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": limit, "sys/fs/cgroup/memory/memory.usage_in_bytes": "5"}
    assert HostMemory.now(tree(tmp_path, {"proc/self/cgroup": "4:memory:/\n", **files})) == HostMemory(
        8 * GIB, 16 * GIB
    )


def test_what_is_not_known_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert HostMemory.now(tmp_path) is None


def test_this_host_has_some() -> None:
    memory = HostMemory.now()
    assert memory is None or 0 < memory.free <= memory.total


@pytest.mark.parametrize(("said", "number"), [("8", 8), ("0", 1), ("", 1), ("many", 1), ("\u2075", 1)])
def test_torchrun_says_how_many_share_the_host(said: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    assert processes_on_host() == number
