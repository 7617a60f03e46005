"""Tell how much host memory is left for this process, by the kernel and by the limits of control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_V1_UNLIMITED = 2**60
"""In version 1 of control groups, a limit from here on means no limit: the kernel gives a number near 2**63."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of host memory: those `free`, droppable caches included, and the `total`."""

    free: int
    total: int

    @classmethod
    def now(cls, root: Path = _ROOT) -> HostMemory | None:
        """Return the memory of this host, or of this process's control group if that has less left.

        None if neither is known, as on Windows. `root` is where /proc and /sys are.
        """
        kernel: list[HostMemory] = []
        fields = _numbers(root / "proc/meminfo", scale=1024)
        if {"MemAvailable", "MemTotal"} <= fields.keys():
            kernel.append(cls(fields["MemAvailable"], fields["MemTotal"]))
        else:
            with suppress(AttributeError, OSError, ValueError):
                page = os.sysconf("SC_PAGE_SIZE")
                kernel.append(cls(page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")))
        return min([*kernel, *_control_groups(root)], key=lambda memory: memory.free, default=None)


def processes_on_host() -> int:
    """Return the number of processes of this training on the host: as torchrun says, or one."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(said), 1) if said.isdecimal() else 1


def _control_groups(root: Path) -> Iterator[HostMemory]:
    """Yield what is left under the limit of each control group around this process, in both versions."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, limit, usage, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit, usage, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        inside = base / path.strip("/")
        for group in (inside, *(outer for outer in inside.parents if outer.is_relative_to(base))):
            most, used = _text(group / limit).strip(), _text(group / usage).strip()
            if most.isdigit() and used.isdigit() and int(most) < _V1_UNLIMITED:  # else "max", or not controlled
                dropped = _numbers(group / "memory.stat").get(cache, 0)
                yield HostMemory(max(int(most) - int(used) + dropped, 0), int(most))


def _numbers(path: Path, scale: int = 1) -> dict[str, int]:
    """Read a file with a name and numbers on each line: the first number of each name."""
    lines = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {words[0]: scale * int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
