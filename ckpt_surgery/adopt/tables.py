"""What the pages of an adoption share: tables of measurements, faults and versions, as pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckpt_surgery.adopt.adoption import Adoption
from ckpt_surgery.codemods import RULES
from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.measure.report import MARKS, Report
from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, ModeReport
from ckpt_surgery.report.summary import portable
from ckpt_surgery.text import bullets, code, fenced, listed, markdown_table, prose, size

_NAMES = {"ckpt-surgery": "ckpt_surgery"}


def finding_list(adoption: Adoption, findings: Iterable[Finding]) -> str:
    """Each finding with its place and message."""
    folder = adoption.source.folder
    return bullets(
        f"{code(f'{folder.relative(finding.path)}:{finding.line}')} {finding.code}"
        f"{f' {code(finding.class_name)}' if finding.class_name else ''}: {prose(finding.message)}"
        for finding in findings
    )


def rule_list(codes: Iterable[str]) -> str:
    """What each of these rules finds."""
    wanted = set(codes)
    return bullets(f"{rule.code} ({code(rule.name)}): {prose(rule.summary)}" for rule in RULES if rule.code in wanted)


def level_table(report: Report) -> str:
    """One row for each level, with the modes beside one another, before and after the repair if there was one."""
    columns = report.columns(alone=True)
    levels = [level for level in LEVELS if any(run and level in run.outcomes for _, run in columns)]
    rows = [
        [f"{code(level)}: {LEVEL_TITLES[level]}", *(MARKS[run.cell(level)] if run else "-" for _, run in columns)]
        for level in levels
    ]
    kept = [_kept(run) for _, run in columns]
    rows += [["memory kept for the backward pass", *kept]] if any(cell != "-" for cell in kept) else []
    return markdown_table(["level", *(title for title, _ in columns)], rows)


def fault_list(report: Report) -> str:
    """Every fault once, with its modes; empty if there are none."""
    return bullets(
        f"{listed([code(mode) for mode in modes])}, {code(fault.level)}: {prose(portable(str(fault)))}"
        for modes, fault in report.merged_faults
    )


def versions_text(versions: Mapping[str, str]) -> str:
    """The packages with their versions, as a clause."""
    return listed([f"{_NAMES.get(name, name)} {version}" for name, version in versions.items()])


def console(commands: Sequence[str]) -> str:
    """Commands to type."""
    return fenced("\n".join(f"$ {command}" for command in commands), "console")


def _kept(run: ModeReport | None) -> str:
    if run is None or run.cost is None:
        return "-"
    return f"{size(run.cost.kept_bytes)} of {size(run.cost.reference_kept_bytes)}"
