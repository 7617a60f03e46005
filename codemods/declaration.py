"""What a rule's file declares about the rule, as data: all that other parts of the package need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.codemods.tree.arguments import ArgumentRepair


class RepairKind(StrEnum):
    """Who repairs what a rule finds."""

    SAFE = "safe"
    """`apply`. Some findings may still need `--unsafe`, or a person."""

    UNSAFE = "unsafe"
    """`apply --unsafe` alone."""

    NONE = "none"
    """A person: the rule only reports."""


class Subject(StrEnum):
    """What kind of code a rule is about."""

    MODEL = "model"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a rule's file says about the rule, beside its name, its docstring and its function `find`."""

    code: str
    repair: RepairKind
    subject: Subject = Subject.MODEL
    applicability: Applicability | None = None
    """How applicable all its findings are; None where each finding says so itself."""
    commit: str | None = None
    """What its repair does, as a commit message says it of the class `{}`; None where no series repairs it."""
    settles: tuple[str, ...] = ()
    """Codes whose unsafe findings are safe once this rule's repair is made with theirs."""
    argument_repair: ArgumentRepair | None = None
    """What its repair changes about the arguments of calls, for other rules' edits to leave to it."""
