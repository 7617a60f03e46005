"""What is shown of a `CheckResult`: the report that every output format renders."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckpt_surgery.codemods import Rule
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import FAULTS, CheckResult

LEVELS = {
    Applicability.SAFE: "error",
    Applicability.UNSAFE: "error",
    Applicability.INFO: "note",
    Applicability.UNKNOWN: "warning",
}
"""What other tools call a finding, in the words of SARIF."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A `CheckResult` for display: `hidden` counts the findings that are left out."""

    result: CheckResult
    shown: tuple[Finding, ...]
    hidden: Mapping[Applicability, int]
    rules: Sequence[Rule]

    @classmethod
    def of(
        cls, result: CheckResult, rules: Sequence[Rule], *, show_info: bool = False, show_unknown: bool = False
    ) -> CheckReport:
        """Choose what of `result` is shown. Faults always are."""
        visible = {*FAULTS, *([Applicability.INFO] * show_info), *([Applicability.UNKNOWN] * show_unknown)}
        shown = tuple(finding for finding in result.findings if finding.applicability in visible)
        hidden = Counter(finding.applicability for finding in result.findings if finding.applicability not in visible)
        return cls(result, shown, hidden, rules)

    @property
    def by_file(self) -> dict[str, list[Finding]]:
        """The findings of each file, faults first; files with faults come first."""
        files: dict[str, list[Finding]] = defaultdict(list)
        for finding in sorted(self.shown, key=lambda finding: (finding.applicability not in FAULTS, finding.sort_key)):
            files[finding.path].append(finding)
        return files

    @property
    def statistics(self) -> list[tuple[Rule, Counter[Applicability]]]:
        """The findings that are shown, counted by rule and applicability; rules without one are left out."""
        counts: dict[str, Counter[Applicability]] = defaultdict(Counter)
        for finding in self.shown:
            counts[finding.code][finding.applicability] += 1
        return [(rule, counts[rule.code]) for rule in self.rules if rule.code in counts]


def sentence(finding: Finding) -> str:
    """Return what a finding says, and of which class or function."""
    return f"{finding.class_name}: {finding.message}" if finding.class_name else finding.message


def display_path(path: str) -> str:
    """Return the path as a user would type it: relative if it lies under the working folder, if that exists."""
    try:
        absolute, here = os.path.abspath(path), os.getcwd().rstrip(os.sep) + os.sep
    except FileNotFoundError:
        return path
    return absolute[len(here) :] if absolute.startswith(here) else path
