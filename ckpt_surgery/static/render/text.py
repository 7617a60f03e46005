"""Results as lines of plain text; `ckpt_surgery.cli.terminal` adds the colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.render.report import CheckReport, RuleText, display_path, statistics
from ckpt_surgery.static.results import FAULTS, ApplyResult
from ckpt_surgery.text import listed, plural, wrapped


def finding_lines(report: CheckReport, *, width: int = 80) -> list[str]:
    """The findings, grouped by family and wrapped at `width` columns; no path or message is cut short."""
    lines: list[str] = []
    ordered = sorted(report.shown, key=lambda finding: (finding.family, finding.sort_key))
    for family, group in groupby(ordered, key=lambda finding: finding.family):
        findings = list(group)
        lines += [f"{family or 'other'}: {plural(len(findings), 'finding')}"]
        for finding in findings:
            lines += wrapped(_finding_text(finding), width, "  ", "      ")
        lines.append("")
    return lines


def _finding_text(finding: Finding) -> str:
    subject = f"{finding.class_name}: " if finding.class_name else ""
    place = f"{display_path(finding.path)}:{finding.line}:{finding.column}"
    return f"{place} {finding.code} [{finding.applicability}] {subject}{finding.message}"


def statistics_lines(report: CheckReport, *, width: int = 80) -> list[str]:
    """The counts by rule: how many, which rule, what it finds."""
    lines: list[str] = []
    for rule in statistics(report.shown, report.rules):
        kinds = ", ".join(f"{count} {kind}" for kind, count in rule.by_applicability.items())
        head = f"{rule.count:>6}  {rule.code} {rule.name} ({kinds}): "
        lines += wrapped(head.lstrip() + rule.summary, width, " " * (8 - len(f"{rule.count}  ")), " " * 8)
    return [*lines, ""] if lines else []


def summary_lines(report: CheckReport, *, width: int = 80) -> list[str]:
    """How much was read, what was found, what is not shown and what to do next."""
    kinds = Counter(f.applicability for f in report.shown)
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in Applicability if kinds[kind])
    results = f"{plural(len(report.shown), 'finding')} ({counts})" if counts else "no findings"
    results += f", {report.suppressed} suppressed" if report.suppressed else ""
    results += f", {plural(len(report.problems), 'problem')}" if report.problems else ""
    lines = wrapped(f"Checked {plural(report.files, 'file')} in {report.seconds:.1f} s: {results}.", width)
    hidden = [
        f"{report.hidden[kind]} {kind} (--show-{kind})"
        for kind in (Applicability.INFO, Applicability.UNKNOWN)
        if report.hidden.get(kind)
    ]
    if hidden:
        lines += wrapped(f"Not shown: {', '.join(hidden)}.", width)
    repairable = Counter(f.applicability for f in report.shown if f.repairs)
    safe, unsafe = repairable[Applicability.SAFE], repairable[Applicability.UNSAFE]
    if safe or unsafe:
        ways = [f"{safe} with `ckpt_surgery apply`"] if safe else []
        ways += [f"{unsafe} with `apply --unsafe`"] if unsafe else []
        lines += wrapped(f"Can be repaired: {listed(ways)}.", width)
    return lines


def apply_lines(result: ApplyResult, rules: Sequence[RuleText], *, width: int = 80) -> list[str]:
    """The summary of `apply`: files changed, findings repaired and left by rule, and why they are left."""
    verb = "Changed" if result.written else "Would change"
    changed, files = len(result.changes), plural(result.files, "file")
    problems = f", {plural(len(result.problems), 'problem')}" if result.problems else ""
    lines = wrapped(f"{verb} {changed} of {files} in {result.seconds:.1f} s{problems}.", width)
    faults = Counter(f.code for f in result.findings if f.applicability in FAULTS)
    left = Counter(f.code for f in result.left if f.applicability in FAULTS)
    for rule in rules:
        if not faults[rule.code] and not left[rule.code]:
            continue
        repaired = max(0, faults[rule.code] - left[rule.code])
        why = _why_left([f for f in result.left if f.code == rule.code], result.unsafe)
        lines += wrapped(f"{rule.code} {rule.name}: {repaired} repaired, {why}", width, "  ", "      ")
    if result.notes:
        lines.append("Notes:")
    for note in result.notes:
        lines += wrapped(str(note), width, "  - ", "    ")
    return lines


def rule_lines(rules: Sequence[RuleText], *, width: int = 80) -> list[str]:
    """One entry for each rule: its code, its name and, below, what it finds."""
    lines: list[str] = []
    for rule in rules:
        lines += [f"{rule.code} {rule.name}", *wrapped(rule.summary, width, "    ", "    ")]
    return lines


def _why_left(left: Sequence[Finding], unsafe: bool) -> str:
    kinds = Counter((f.applicability, bool(f.repairs)) for f in left)
    not_repaired = kinds[Applicability.SAFE, True] + kinds[Applicability.SAFE, False]
    repairable = kinds[Applicability.UNSAFE, True]
    reasons = (
        (not_repaired + repairable * unsafe, "not repaired (see the notes and problems)"),
        (repairable * (not unsafe), "unsafe (--unsafe repairs them)"),
        (kinds[Applicability.UNSAFE, False], "to be repaired by hand"),
    )
    counts = [f"{count} {reason}" for count, reason in reasons if count]
    return f"left: {', '.join(counts)}" if counts else "none left"
