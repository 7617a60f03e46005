"""The options of a run of `pr`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class GroupBy(StrEnum):
    """How families are grouped into series."""

    FAMILY = "family"
    ROOT = "root"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Which series to prepare, on which base, and where to write them.

    Without `families`, all that are not deprecated are meant; without `codes`, all rules; without `python`, the
    checkout's own.
    """

    out: Path
    families: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    group_by: GroupBy = GroupBy.ROOT
    base: str = "main"
    python: Path | None = None
    coordination: str = ""
    include_unreproduced: bool = False
    jobs: int | None = None

    @property
    def command(self) -> str:
        """Return the command line that makes the same series, without paths of this machine."""
        parts = ["ckpt_surgery", "pr", "transformers"]
        parts += ["--families", ",".join(self.families)] if self.families else ["--all"]
        parts += ["--select", ",".join(self.codes)] if self.codes else []
        parts += ["--group-by", self.group_by, "--base", self.base]
        parts += ["--include-unreproduced"] if self.include_unreproduced else []
        return shlex.join(parts + (["--coordination", self.coordination] if self.coordination else []))
