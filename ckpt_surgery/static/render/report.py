"""What is shown of a `CheckResult`: the report that every output format renders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ckpt_surgery.codemods.declaration import Subject
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import FAULTS, CheckResult, Problem


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
    @property
    def subject(self) -> Subject: ...


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A `CheckResult` as it is shown: `hidden` counts the findings that are left out."""

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


def check_report(
    result: CheckResult, rules: Sequence[RuleText], *, show_info: bool = False, show_unknown: bool = False
) -> CheckReport:
    """Choose what of `result` is shown. Faults always are."""
    visible = {*FAULTS, *([Applicability.INFO] * show_info), *([Applicability.UNKNOWN] * show_unknown)}
    return CheckReport(
        shown=tuple(finding for finding in result.findings if finding.applicability in visible),
        hidden=Counter(finding.applicability for finding in result.findings if finding.applicability not in visible),
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
    """The path as a user would type it: relative if it lies under the working folder, where that still exists."""
    try:
        absolute, here = os.path.abspath(path), os.getcwd().rstrip(os.sep) + os.sep
    except FileNotFoundError:
        return path
    return absolute[len(here) :] if absolute.startswith(here) else path
