"""What a rule returns, as frozen values: a finding and, where there are some, the repairs that put it right."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.codemods.repair import SourceRepair


class Applicability(StrEnum):
    """How far a finding's repair can be trusted."""

    SAFE = "safe"
    """`apply` repairs it; callers elsewhere see no difference."""

    UNSAFE = "unsafe"
    """A fault whose repair may break code outside the tree, or is left to a person."""

    INFO = "info"
    """Worth knowing, not a fault: never changes an exit code."""

    UNKNOWN = "unknown"
    """The code does not show enough to decide (a base outside the tree, a `**kwargs` that may hold anything)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's hit at one place.

    `line` and `column` count from 1. `class_name` is the class that the finding is about: the block, or the model that
    calls it; in a training script the function (`Trainer.fit`), empty at module level. `family` is the model's folder
    name (`gpt_bigcode`), or the file's stem where there is no such folder. `repairs` is empty if that is left to a
    person.
    """

    code: str
    path: str
    line: int
    column: int
    class_name: str
    message: str
    applicability: Applicability
    family: str = ""
    repairs: tuple[SourceRepair, ...] = ()
    first_line: int = 0
    """Where the statement or decorated class of the finding begins: a comment there may suppress it too."""

    @property
    def sort_key(self) -> tuple[str, int, int, str]:
        """The order of a report: by place, then by code."""
        return (self.path, self.line, self.column, self.code)
