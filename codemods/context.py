"""What every rule decides on: a tree of files, what is asked of it, and how a finding about a place in it is made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ckpt_surgery.codemods.declaration import Declaration
from ckpt_surgery.codemods.facts.script_facts import Spot
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repair import NewArgument, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair
from ckpt_surgery.codemods.tree.arguments import ArgumentRepair
from ckpt_surgery.codemods.tree.call_sites import CallSite
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches import family_of


@dataclass(frozen=True, slots=True)
class RuleContext:
    """One tree under the rules.

    `selected` are the codes of the rules that run, and `argument_repairs` what these rules repair about the arguments
    of calls: the repairs of one rule never make those of another.
    """

    tree: SourceTree
    include_unsupported: bool = False
    selected: Collection[str] = ()
    argument_repairs: Collection[ArgumentRepair] = ()

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
        """A finding at a span, as applicable as it says or as the rule declares of all its findings.

        `first_line` is where its statement or decorated class begins; by default the line of the span.

        Raises:
            ValueError: neither the finding nor its rule says how applicable it is.
        """
        applicability = applicability or rule.applicability
        if applicability is None:
            raise ValueError(f"{rule.code} declares no applicability, so each of its findings has to name one")
        return Finding(
            code=rule.code,
            path=path,
            line=span.line,
            column=self._column(path, span),
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
        """A finding about a class, at its header."""
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
        """A finding about a call: at the argument's `span`, or at the call. New `arguments` are the repair."""
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
        """A finding about a place in a training script: it is about the function there."""
        return self.finding(rule, path, spot.span, spot.scope, message, applicability, repairs, spot.first_line)

    def _column(self, path: str, span: Span) -> int:
        """The column in characters, from 1; `ast` counts bytes."""
        if self.tree.text(path).isascii():
            return span.column + 1
        source = self.tree.source(path)
        start = source.offset(span.line, span.column)
        return start - source.line_start(start) + 1
