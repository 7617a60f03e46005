"""What a rule's file declares about the rule, as data: all that other parts of the package need to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


class Observation(StrEnum):
    """What `verify` can see of a run in which checkpointing goes wrong.

    The rule that finds the cause in source declares the sentence that explains it. Its fields: `block` is the
    class of the block, `argument` the name of the argument, `outer` the class of the block around it, `model` that of
    the model.
    """

    PLAIN_BLOCK = "plain_block"
    OUTDATED_SWITCH = "outdated_switch"
    NESTED_BLOCKS = "nested_blocks"
    POSITIONAL_PAST_STATE = "positional_past_state"
    KEYWORD_GRADIENT = "keyword_gradient"
    RETURNED_KEYWORD = "returned_keyword"
    SHARED_WRITES = "shared_writes"
    GRADIENT_CONTAINER = "gradient_container"
    NESTED_OUTPUT = "nested_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A rule as its file declares it.

    Its name is the file's name, its documentation the file's docstring, and its `find` the file's function.
    """

    code: str
    repair: RepairKind
    subject: Subject = Subject.MODEL
    applicability: Applicability | None = None
    """How applicable all its findings are; None where each finding says so itself."""
    commit: str | None = None
    """What its repair does, as a commit message says it of the class `{}`; None where no series repairs it."""
    causes: Mapping[Observation, str] = field(default_factory=dict, hash=False)
    """The sentences with which a verdict explains what was seen; empty where it shows in no run."""
    settles: tuple[str, ...] = ()
    """Codes whose unsafe findings are safe once this rule's repair is made with theirs."""
    argument_repair: ArgumentRepair | None = None
    """What its repair changes about the arguments of calls, for other rules' edits to leave to it."""
