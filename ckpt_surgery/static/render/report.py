"""The report on a `CheckResult` that every output format renders, and results as plain text.

`ckpt_surgery.cli.terminal` adds the colours.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckpt_surgery.codemods import Rule
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import FAULTS, ApplyResult, CheckResult
from ckpt_surgery.text import listed, plural, wrapped

LEVELS = {
    Applicability.SAFE: "error",
    Applicability.UNSAFE: "error",
    Applicability.INFO: "note",
    Applicability.UNKNOWN: "warning",
}
"""The level of a finding, in the words of SARIF."""


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

    def finding_lines(self, *, width: int = 80) -> list[str]:
        """Return the findings by file, those with faults first, wrapped at `width` columns, none cut short."""
        lines: list[str] = []
        for path, findings in self.by_file.items():
            lines.append(display_path(path))
            for finding in findings:
                said = f"{finding.line}:{finding.column} {finding.code} [{finding.applicability}] {sentence(finding)}"
                lines += wrapped(said, width, "  ", "      ")
            lines.append("")
        return lines

    def information_lines(self) -> list[str]:
        """Return the codes of information that is not shown, one line for each file."""
        if Applicability.INFO not in self.hidden:
            return []
        by_path: dict[str, Counter[str]] = defaultdict(Counter)
        for finding in self.result.findings:
            if finding.applicability is Applicability.INFO:
                by_path[finding.path][finding.code] += 1
        lines = ["Information (--show-info):"]
        for path, codes in by_path.items():
            counts = [f"{count} x {code}" if count > 1 else code for code, count in codes.items()]
            lines.append(f"  {display_path(path)}: {', '.join(counts)}")
        return [*lines, ""]

    def statistics_lines(self, *, width: int = 80) -> list[str]:
        """Return the counts by rule: how many, which rule, what it finds."""
        lines: list[str] = []
        for rule, counts in self.statistics:
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            head = f"{counts.total()}  "
            said = f"{head}{rule.code} {rule.name} ({kinds}): {rule.summary}"
            lines += wrapped(said, width, " " * (8 - len(head)), " " * 8)
        return [*lines, ""] if lines else []

    def summary_lines(self, *, width: int = 80) -> list[str]:
        """Return how much was read, what was found, what is not shown and what to do next."""
        result = self.result
        kinds = Counter(f.applicability for f in self.shown)
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in Applicability if kinds[kind])
        results = f"{plural(len(self.shown), 'finding')} ({counts})" if counts else "no findings"
        results += f", {result.suppressed} suppressed" if result.suppressed else ""
        lines = wrapped(
            f"Checked {plural(result.files, 'file')} in {result.seconds:.1f} s: {results}{_problems(result)}.", width
        )
        optional = (Applicability.INFO, Applicability.UNKNOWN)
        if hidden := [f"{self.hidden[kind]} {kind} (--show-{kind})" for kind in optional if kind in self.hidden]:
            lines += wrapped(f"Not shown: {', '.join(hidden)}.", width)
        repairable = Counter(f.applicability for f in _repairable(self.shown))
        commands = {Applicability.SAFE: "ckpt_surgery apply", Applicability.UNSAFE: "apply --unsafe"}
        if ways := [f"{repairable[kind]} with `{command}`" for kind, command in commands.items() if repairable[kind]]:
            lines += wrapped(f"Can be repaired: {listed(ways)}.", width)
        return lines + _note_lines(result, width)


def sentence(finding: Finding) -> str:
    """Return what a finding says, and of which class or function."""
    return f"{finding.class_name}: {finding.message}" if finding.class_name else finding.message


def display_path(path: str) -> str:
    """Return the path as a user would type it: relative if it is below the working folder, if there is one."""
    try:
        absolute, here = os.path.abspath(path), os.getcwd().rstrip(os.sep) + os.sep
    except FileNotFoundError:
        return path
    return absolute[len(here) :] if absolute.startswith(here) else path


def apply_lines(result: ApplyResult, rules: Sequence[Rule], *, width: int = 80) -> list[str]:
    """Return the summary of `apply`: files changed, findings repaired and left by rule, and why they are left."""
    verb = "Changed" if result.written else "Would change"
    changed, files = len(result.changes), plural(result.files, "file")
    lines = wrapped(f"{verb} {changed} of {files} in {result.seconds:.1f} s{_problems(result)}.", width)
    faults = Counter(f.code for f in result.findings if f.applicability in FAULTS)
    left = Counter(f.code for f in result.left if f.applicability in FAULTS)
    repairable = _repairable(result.left)
    for rule in rules:
        if faults[rule.code] or left[rule.code]:
            repaired = max(0, faults[rule.code] - left[rule.code])
            kinds = Counter((f.applicability, f in repairable) for f in result.left if f.code == rule.code)
            not_repaired = kinds[Applicability.SAFE, True] + kinds[Applicability.SAFE, False]
            unsafe = kinds[Applicability.UNSAFE, True]
            reasons = (
                (not_repaired + unsafe * result.unsafe, "not repaired (see the notes and problems)"),
                (unsafe * (not result.unsafe), "unsafe (--unsafe repairs them)"),
                (kinds[Applicability.UNSAFE, False], "to be repaired by hand"),
            )
            counts = ", ".join(f"{count} {reason}" for count, reason in reasons if count)
            why = f"left: {counts}" if counts else "none left"
            lines += wrapped(f"{rule.code} {rule.name}: {repaired} repaired, {why}", width, "  ", "      ")
    return lines + _note_lines(result, width)


def _note_lines(result: CheckResult | ApplyResult, width: int) -> list[str]:
    lines = ["Notes:"] if result.notes else []
    for note in result.notes:
        lines += wrapped(str(note), width, "  - ", "    ")
    return lines


def _problems(result: CheckResult | ApplyResult) -> str:
    return f", {plural(len(result.problems), 'problem')}" if result.problems else ""


def _repairable(findings: Sequence[Finding]) -> frozenset[Finding]:
    """Return the findings that are repaired, or settled by the repair of others among them."""
    codes = {finding.code for finding in findings if finding.repairs}
    return frozenset(finding for finding in findings if finding.repairs or finding.follows in codes)
