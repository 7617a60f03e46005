"""What a rule declares, the context it decides in, and the findings it yields."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.codemods.facts.script_facts import Spot
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.repair import NewArgument, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair
from ckpt_surgery.codemods.tree.arguments import ArgumentRepair
from ckpt_surgery.codemods.tree.call_sites import CallSite
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches import family_of


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
    name (`gpt_bigcode`), or the file's stem where there is no such folder. `repairs` is empty if the repair is left
    to a person.
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
    follows: str = ""
    """The code of the rule whose repair settles this finding too, which has no repair of its own."""
    differing: tuple[str, ...] = ()
    """The arguments that a block gets only with, or only without, checkpointing, or with another value."""

    @property
    def sort_key(self) -> tuple[str, int, int, str]:
        """The order of a report: by place, then by code."""
        return (self.path, self.line, self.column, self.code)


class RepairKind(StrEnum):
    """Who repairs a rule's findings."""

    SAFE = "safe"
    """`apply`. Some findings may still need `--unsafe`, or a person."""

    UNSAFE = "unsafe"
    """`apply --unsafe` alone."""

    NONE = "none"
    """A person: the rule only reports."""


class Subject(StrEnum):
    """The kind of code that a rule is about."""

    MODEL = "model"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declarations in a rule's file, apart from its name, its docstring and `find`."""

    code: str
    repair: RepairKind
    subject: Subject = Subject.MODEL
    applicability: Applicability | None = None
    """The applicability of all its findings; None if each finding gives its own."""
    commit: str | None = None
    """The commit message for its repair, with `{}` for the class; None if no patch series makes the repair."""
    settles: tuple[str, ...] = ()
    """Codes of rules whose unsafe findings become safe if this rule's repair is made with theirs."""
    argument_repair: ArgumentRepair | None = None
    """What its repair changes about call arguments; other rules leave that to it."""


@dataclass(frozen=True, slots=True)
class RuleContext:
    """The tree that the rules look at, and which of them were asked for.

    `selected` are the codes of the rules that run, and `argument_repairs` is what these rules repair about call
    arguments: no rule makes the repairs of another. `named` are the codes that the user named to have them repaired:
    code that works, or works in the mode that is used, is repaired only for these.
    """

    tree: SourceTree
    include_unsupported: bool = False
    selected: Collection[str] = ()
    argument_repairs: Collection[ArgumentRepair] = ()
    named: Collection[str] = ()

    def if_reentrant(self, rule: Declaration, path: str, applicability: Applicability) -> Applicability:
        """Return the applicability of a fault of `use_reentrant=True` alone: INFO if nothing uses that mode."""
        unused = rule.code not in self.named and self.tree.never_reentrant(path)
        return Applicability.INFO if unused else applicability

    def finding(
        self,
        rule: Declaration,
        path: str,
        span: Span,
        class_name: str,
        message: str,
        applicability: Applicability | None = None,
        repairs: tuple[SourceRepair, ...] = (),
        first_line: int | None = None,
    ) -> Finding:
        """Return a finding at a span, with the given applicability or else that of the rule.

        `first_line` is where its statement or decorated class begins; by default the line of the span.

        Raises:
            ValueError: neither the call nor the rule gives an applicability.
        """
        applicability = applicability or rule.applicability
        if applicability is None:
            raise ValueError(f"{rule.code} declares no applicability, so each of its findings has to name one")
        source = self.tree.source(path)
        start = source.offset(span.line, span.column)  # in characters, where `ast` counts bytes
        return Finding(
            code=rule.code,
            path=path,
            line=span.line,
            column=start - source.line_start(start) + 1,
            class_name=class_name,
            message=message,
            applicability=applicability,
            family=family_of(path),
            repairs=repairs,
            first_line=span.line if first_line is None else first_line,
        )

    def class_finding(
        self,
        rule: Declaration,
        ref: ClassRef,
        message: str,
        applicability: Applicability | None = None,
        repairs: tuple[SourceRepair, ...] = (),
        *,
        first_line: int | None = None,
    ) -> Finding:
        """Return a finding about a class, at its header."""
        return self.finding(rule, ref.path, ref.cls.header, ref.name, message, applicability, repairs, first_line)

    def call_finding(
        self,
        rule: Declaration,
        site: CallSite,
        message: str,
        applicability: Applicability | None = None,
        *,
        span: Span | None = None,
        arguments: tuple[NewArgument, ...] | None = None,
    ) -> Finding:
        """Return a finding about a call, at the `span` of an argument or at the call; `arguments` are its repair."""
        path, call = site.owner.path, site.call
        repairs = (call_repair(self.tree, path, call.span, arguments),) if arguments else ()
        line = call.statement.line
        return self.finding(rule, path, span or call.span, site.owner.name, message, applicability, repairs, line)

    def script_finding(
        self,
        rule: Declaration,
        path: str,
        spot: Spot,
        message: str,
        applicability: Applicability | None = None,
        repairs: tuple[SourceRepair, ...] = (),
    ) -> Finding:
        """Return a finding about a place in a training script, and the function there."""
        return self.finding(rule, path, spot.span, spot.scope, message, applicability, repairs, spot.first_line)
