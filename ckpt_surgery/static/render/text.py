"""Results out: what a report shows, and the lines of text for people. No file is read here.

The formats for machines are in `machine_output`; both read the same `Report`.
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import ApplyResult, CheckResult, Problem

FAULTS = (Applicability.SAFE, Applicability.UNSAFE)


class RuleText(Protocol):
    """What a report needs to know of a rule; every rule in `codemods.RULES` has it."""

    @property
    def code(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def documentation(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Report:
    """A `CheckResult` as it is to be shown: `hidden` counts what was found and is left out."""

    shown: tuple[Finding, ...]
    hidden: Mapping[Applicability, int]
    problems: tuple[Problem, ...]
    rules: tuple[RuleText, ...]
    files: int
    suppressed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RuleCount:
    """One line of the statistics: how many of a rule's findings are shown, by applicability."""

    code: str
    name: str
    summary: str
    count: int
    by_applicability: Mapping[str, int]


def report(
    result: CheckResult, rules: Sequence[RuleText], *, show_info: bool = False, show_unknown: bool = False
) -> Report:
    """Choose what of `result` is shown. Faults always are."""
    wanted = {*FAULTS, *([Applicability.INFO] * show_info), *([Applicability.UNKNOWN] * show_unknown)}
    return Report(
        shown=tuple(f for f in result.findings if f.applicability in wanted),
        hidden=Counter(f.applicability for f in result.findings if f.applicability not in wanted),
        problems=result.problems,
        rules=tuple(rules),
        files=result.files,
        suppressed=result.suppressed,
        seconds=result.seconds,
    )


def statistics(findings: Iterable[Finding], rules: Sequence[RuleText]) -> list[RuleCount]:
    """The findings counted by rule, in the order of the rules; rules without a finding are left out."""
    by_code: dict[str, Counter[str]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, Counter())[finding.applicability.value] += 1
    return [
        RuleCount(rule.code, rule.name, rule.summary, by_code[rule.code].total(), dict(by_code[rule.code]))
        for rule in rules
        if rule.code in by_code
    ]


def display_path(path: str) -> str:
    """The path as a reader here would type it: relative where it lies under the working folder."""
    absolute, here = os.path.abspath(path), os.getcwd().rstrip(os.sep) + os.sep
    return absolute[len(here) :] if absolute.startswith(here) else path


def finding_lines(shown: Report, *, width: int = 80) -> list[str]:
    """The findings, grouped by family and wrapped at `width` columns; no path or message is cut short."""
    lines: list[str] = []
    ordered = sorted(shown.shown, key=lambda f: (f.family, f.sort_key))
    for family, group in groupby(ordered, key=lambda f: f.family):
        findings = list(group)
        lines += [f"{family or 'other'}: {_count(len(findings), 'finding')}"]
        for f in findings:
            subject = f"{f.class_name}: " if f.class_name else ""
            place = f"{display_path(f.path)}:{f.line}:{f.column}"
            lines += _wrap(f"{place} {f.code} [{f.applicability}] {subject}{f.message}", width, "  ", "      ")
        lines.append("")
    return lines


def statistics_lines(shown: Report, *, width: int = 80) -> list[str]:
    """The counts by rule: how many, which rule, what it finds."""
    lines: list[str] = []
    for rule in statistics(shown.shown, shown.rules):
        kinds = ", ".join(f"{count} {kind}" for kind, count in rule.by_applicability.items())
        head = f"{rule.count:>6}  {rule.code} {rule.name} ({kinds}): "
        lines += _wrap(head.lstrip() + rule.summary, width, " " * (8 - len(f"{rule.count}  ")), " " * 8)
    return [*lines, ""] if lines else []


def summary_lines(shown: Report, *, width: int = 80) -> list[str]:
    """What was read, what was found, what is not shown and what to do next."""
    kinds = Counter(f.applicability for f in shown.shown)
    parts = ", ".join(f"{kinds[kind]} {kind}" for kind in Applicability if kinds[kind])
    found = f"{_count(len(shown.shown), 'finding')} ({parts})" if parts else "no findings"
    also = f", {shown.suppressed} suppressed" if shown.suppressed else ""
    also += f", {_count(len(shown.problems), 'problem')}" if shown.problems else ""
    lines = _wrap(f"Checked {_count(shown.files, 'file')} in {shown.seconds:.1f} s: {found}{also}.", width)
    hidden = [
        f"{shown.hidden[kind]} {kind} (--show-{kind})"
        for kind in (Applicability.INFO, Applicability.UNKNOWN)
        if shown.hidden.get(kind)
    ]
    if hidden:
        lines += _wrap(f"Not shown: {', '.join(hidden)}.", width)
    repairable = Counter(f.applicability for f in shown.shown if f.edits)
    safe, unsafe = repairable[Applicability.SAFE], repairable[Applicability.UNSAFE]
    if safe or unsafe:
        more = f"{' and ' if safe else ''}{unsafe} with `apply --unsafe`" if unsafe else ""
        first = f"{safe} with `ckpt_surgery apply`" if safe else ""
        lines += _wrap(f"Can be repaired: {first}{more}.", width)
    return lines


def apply_lines(result: ApplyResult, rules: Sequence[RuleText], *, width: int = 80) -> list[str]:
    """The summary of `apply`: files changed, findings repaired and left by rule, and why they are left."""
    verb = "Changed" if result.written else "Would change"
    changed, files = len(result.changes), _count(result.files, "file")
    lines = _wrap(f"{verb} {changed} of {files} in {result.seconds:.1f} s.", width)
    found = Counter(f.code for f in result.found if f.applicability in FAULTS)
    left = Counter(f.code for f in result.left if f.applicability in FAULTS)
    for rule in rules:
        if not found[rule.code] and not left[rule.code]:
            continue
        repaired = max(0, found[rule.code] - left[rule.code])
        why = _why_left([f for f in result.left if f.code == rule.code])
        lines += _wrap(f"{rule.code} {rule.name}: {repaired} repaired, {why}", width, "  ", "      ")
    if result.notes:
        lines.append("Notes:")
    for note in result.notes:
        lines += _wrap(note, width, "  - ", "    ")
    return lines


def rule_lines(rules: Sequence[RuleText], *, width: int = 80) -> list[str]:
    """One entry for each rule: its code, its name and, below, what it finds."""
    lines: list[str] = []
    for rule in rules:
        lines += [f"{rule.code} {rule.name}", *_wrap(rule.summary, width, "    ", "    ")]
    return lines


def repairs_left(result: ApplyResult) -> tuple[Finding, ...]:
    """The findings that `apply` should have repaired and did not: safe ones."""
    return tuple(f for f in result.left if f.applicability is Applicability.SAFE)


def _why_left(left: Sequence[Finding]) -> str:
    kinds = Counter((f.applicability, bool(f.edits)) for f in left)
    safe = kinds[Applicability.SAFE, True] + kinds[Applicability.SAFE, False]
    reasons = (
        (safe, "not repaired (see the notes and problems)"),
        (kinds[Applicability.UNSAFE, True], "unsafe (--unsafe repairs them)"),
        (kinds[Applicability.UNSAFE, False], "to be repaired by hand"),
    )
    said = [f"{count} {reason}" for count, reason in reasons if count]
    return f"left: {', '.join(said)}" if said else "none left"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
