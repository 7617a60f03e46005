"""Sum up reports as counts, causes, rows and short phrases, which all formats share, and as a JSON document.

There is no layout and no escaping here, and nothing is measured.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from ckpt_surgery.measure.report import Report, Status
from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, MODES, BlockCount, Level, Mode, Repair, RepairStatus
from ckpt_surgery.text import plural

STATUSES: tuple[Status, ...] = ("failed", "ok", "skipped", "unsupported", "not built")
REPAIR_STATUSES: tuple[RepairStatus, ...] = get_args(RepairStatus)
JSON_SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or is removed, but not for new keys."""
MOST_CAUSES = 12
"""The number of causes that a page or a table shows."""

assert set(STATUSES) == set(get_args(Status))


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why models fail. `rule` is empty if no rule finds it; `labels` are the classes concerned."""

    rule: str
    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockRow:
    """Neighbouring blocks of one kind with equal entries in every mode.

    `name` stands for all of them. `recomputed` are the entries of one block in the backward, by mode.
    """

    name: str
    kind: str
    blocks: int
    reference: int
    recomputed: tuple[tuple[Mode, int], ...]

    @classmethod
    def of(cls, report: Report, most: int = 0) -> list[BlockRow]:
        """List the blocks with their recomputes; if there are more than `most`, equal neighbours share a row."""
        by_block: dict[str, dict[Mode, BlockCount]] = {}
        for mode in report.modes:
            for block in mode.blocks:
                by_block.setdefault(block.name, {})[mode.mode] = block
        # what a block has in common with its neighbours
        shared: dict[str, tuple[str, int, tuple[tuple[Mode, int], ...]]] = {}
        for name, by_mode in by_block.items():
            first = next(iter(by_mode.values()))
            backward = tuple((mode, block.backward) for mode, block in by_mode.items())
            shared[name] = first.kind, first.reference, backward
        if len(shared) <= most:
            return [cls(name, kind, 1, reference, seen) for name, (kind, reference, seen) in shared.items()]
        rows = []
        for (kind, reference, recomputed), group in groupby(shared, key=shared.__getitem__):
            names = list(group)
            title = names[0]
            if len(names) > 1:  # the last name without the prefix that it shares with the first
                first_path, last_path = names[0].split("."), names[-1].split(".")
                pairs = enumerate(zip(first_path, last_path, strict=False))
                shared_parts = next((index for index, (a, b) in pairs if a != b), 0)
                title = f"{title} to {'.'.join(last_path[shared_parts:])}"
            rows.append(cls(title, kind, len(names), reference, recomputed))
        return rows


@dataclass(frozen=True, slots=True)
class Overview:
    """A summary of several reports. Every list of reports is sorted as `ordered`."""

    reports: Sequence[Report]

    @property
    def ordered(self) -> list[Report]:
        """Sort the reports: failures first, then by class."""
        order = STATUSES.index
        return sorted(self.reports, key=lambda r: (order(r.status), r.label.casefold(), r.label, r.model_type))

    def of_status(self, status: Status) -> list[Report]:
        """Return the reports of one status."""
        return [report for report in self.ordered if report.status == status]

    @property
    def unclaimed(self) -> list[Report]:
        """Return the reports of classes that claim no support for checkpointing and would fail with it."""
        return [report for report in self.of_status("unsupported") if report.faults]

    @property
    def with_skips(self) -> list[Report]:
        """Return the reports with a level that was not judged in a mode where nothing is wrong."""
        return [report for report in self.ordered if any(mode.skips and not mode.wrong for mode in report.modes)]

    @property
    def repairs(self) -> list[tuple[Report, Repair]]:
        """Return the reports with their repairs, for those on which `wrap_blocks` was tried."""
        return [(report, report.repair) for report in self.ordered if report.repair]

    @property
    def broken_after(self) -> list[Report]:
        """Return the reports of models that `wrap_blocks` makes wrong, or refuses although they were right."""
        return [report for report in self.ordered if report.broken_by_repair]

    @property
    def counts(self) -> dict[Status, int]:
        """Count the reports of each status, zeros included."""
        statuses = [report.status for report in self.reports]
        return {status: statuses.count(status) for status in STATUSES}

    @property
    def repair_counts(self) -> dict[RepairStatus, int]:
        """Count the reports of each status after `wrap_blocks`, zeros included; empty if it was not tried."""
        statuses = [report.repair.status for report in self.reports if report.repair]
        return {status: statuses.count(status) for status in REPAIR_STATUSES} if statuses else {}

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions in the reports by package, separated by commas if there are several."""
        versions: dict[str, set[str]] = {}
        for report in self.reports:
            for package, version in report.versions.items():
                versions.setdefault(package, set()).add(version)
        return {package: ", ".join(sorted(versions[package])) for package in sorted(versions, reverse=True)}

    @property
    def measured(self) -> tuple[tuple[Mode, ...], tuple[Level, ...]]:
        """Return the modes that any report has, and the levels that were judged in any mode."""
        runs = [run for report in self.reports for run in report.modes]
        runs += [run for report in self.reports if report.repair for run in report.repair.modes]
        modes = tuple(mode for mode in MODES if any(run.mode == mode for run in runs))
        return modes, tuple(level for level in LEVELS if any(run.outcome(level) != "skipped" for run in runs))

    @property
    def causes(self) -> list[Cause]:
        """List why models fail, the most frequent first.

        Faults with a rule are counted under it, others under their cause, with "a block" for the names of block
        classes, and without a known cause under the level they fail. A class counts once for each of its causes.
        """
        labels_of: dict[tuple[str, str], dict[str, None]] = {}
        for report in self.reports:
            for _mode, fault in report.faults:
                unknown = f'cause not known: fails "{LEVEL_TITLES[fault.level]}"'
                text = rule_summary(fault.rule) if fault.rule else fault.general_cause or unknown
                labels_of.setdefault((fault.rule, text), {})[report.label] = None
        rows = [Cause(rule, text, tuple(labels)) for (rule, text), labels in labels_of.items()]
        return sorted(rows, key=lambda row: (-len(row.labels), row.rule or "~", row.text))

    def to_json(self, *, seconds: float | None = None) -> str:
        """Render one JSON object: the counts by status, and under `reports` what each `Report.to_json` gives.

        The reports keep their order. `unjudged` is the number of those with a level that could not be judged.
        `repairs` are the counts after `wrap_blocks`, null if that was not tried, and `seconds` is the wall-clock time
        of the whole survey, null if unknown.
        """
        from ckpt_surgery.version import __version__

        head = {
            "schema_version": JSON_SCHEMA_VERSION,
            "tool": {"name": "ckpt_surgery", "version": __version__},
            "versions": self.versions,
            "seconds": None if seconds is None else round(seconds, 3),
            "counts": self.counts,
            "unjudged": len(self.with_skips),
            "repairs": self.repair_counts or None,
        }
        opening = json.dumps(head, indent=2).removesuffix("\n}")
        listed = ",\n".join(textwrap.indent(report.to_json().rstrip(), "    ") for report in self.reports)
        return f'{opening},\n  "reports": [\n{listed}\n  ]\n}}\n'


def rule_summary(code: str) -> str:
    """Return what a rule finds, in one line."""
    from ckpt_surgery.codemods import rule_of  # imports all rules: only needed if a verdict names one

    return rule_of(code).summary


def more_causes(causes: Sequence[Cause]) -> str:
    """Count the causes beyond the first `MOST_CAUSES`, as a clause; empty if there are none."""
    more = len(causes) - MOST_CAUSES
    return f"and {plural(more, 'more cause')}" if more > 0 else ""


def error_text(error: float | None) -> str:
    """Render a relative error in words or figures."""
    if error is None:
        return "in one run only"
    return "equal" if error == 0 else f"{error:.1e}" if abs(error) < float("inf") else "not finite"


def portable(text: str) -> str:
    """Remove what depends on the machine from a text: folders before a file name, and addresses."""
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", text)
    return re.sub(r"(?<![\w.:/<-])(?:[A-Za-z]:)?(?:[\\/][\w.+@~-]+){2,}", lambda m: re.split(r"[\\/]", m[0])[-1], text)
