"""Many reports as one Markdown page, kept under version control as the coverage of a release.

It holds no times, no folders and no random order: it changes only when results do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVEL_TITLES, Fault, RepairStatus
from ckpt_surgery.report.summary import (
    after,
    causes,
    counts,
    measured,
    of_status,
    portable,
    repair_counts,
    repairs,
    unclaimed,
    versions_of,
    why_no_verdict,
    with_skips,
)
from ckpt_surgery.text import code, folded, markdown_table, plural, prose

_MEANING = {
    "failed": "at least one mode does something else than the run without checkpointing",
    "ok": "every mode that runs was measured and has no fault",
    "skipped": "none of the modes that were asked for runs",
    "unsupported": "the class does not claim gradient checkpointing",
    "not built": "no tiny model with a working step could be made",
}
_MEANING_AFTER: dict[RepairStatus, str] = {
    "ok": "what runs is as the run without checkpointing",
    "refused": "wrap_blocks refuses the model, or a call of it, with a sentence",
    "failed": "something is still wrong",
    "not repaired": "there is nothing to compare with",
}
_MOST_SUBJECTS = 3


def survey_markdown(reports: Sequence[Report]) -> str:
    """The page: counts, causes, every fault, and the classes that work, are unsupported or were not built.

    If `wrap_blocks` was tried, also what it repairs, what remains, and what it refuses.
    """
    after_surgery = [report.repaired for report, _ in repairs(reports)]
    parts = [
        _heading(reports),
        _counts(reports),
        _counts_after(reports),
        _levels(reports),
        _causes(of_status(reports, "failed")),
        _faults("What is broken", of_status(reports, "failed")),
        _faults("What claims no checkpointing, and would be broken", unclaimed(reports)),
        _faults("What remains after wrap_blocks", after_surgery),
        _refusals([(report.label, said) for report, repair in repairs(reports) for said in repair.refusals]),
        _skips(with_skips(reports)),
        _families("What works", of_status(reports, "ok")),
        _families("What claims no checkpointing", [r for r in of_status(reports, "unsupported") if not r.faults]),
        _unrepaired([report.repaired for report, repair in repairs(reports) if repair.status == "not repaired"]),
        _unbuilt(of_status(reports, "not built")),
        _sources([report for report in reports if report.facts.source]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _heading(reports: Sequence[Report]) -> str:
    versions = versions_of(reports)
    release = f" in transformers {versions['transformers']}" if "transformers" in versions else ""
    others = " and ".join(f"{package} {version}" for package, version in versions.items() if package != "transformers")
    modes = " and ".join(mode.replace("_", "-") for mode in measured(reports)[0])
    fix = " --fix" if repairs(reports) else ""
    return (
        f"# Gradient checkpointing{release}\n\n"
        "One training step of a tiny model with random weights per class: without checkpointing, and with it"
        f"{f', {modes}' if modes else ''}{f' ({others})' if others else ''}. "
        f"This page is written by `ckpt_surgery verify --all{fix} --output-format markdown`; do not edit it."
    )


def _counts(reports: Sequence[Report]) -> str:
    rows = [[status, f"{number:,}", _MEANING[status]] for status, number in counts(reports).items()]
    return markdown_table(["result", "classes", "meaning"], [*rows, ["all", f"{len(reports):,}", ""]])


def _counts_after(reports: Sequence[Report]) -> str:
    rows = [[status, f"{number:,}", _MEANING_AFTER[status]] for status, number in repair_counts(reports).items()]
    return markdown_table(["after wrap_blocks", "classes", "meaning"], rows) if rows else ""


def _levels(reports: Sequence[Report]) -> str:
    levels = measured(reports)[1]
    named = "; ".join(f"{level}: {LEVEL_TITLES[level]}" for level in levels)
    return f"Levels: {named}." if named else ""


def _causes(failed: Sequence[Report]) -> str:
    rows = [[cause.rule, _text(cause.text), f"{len(cause.labels):,}"] for cause in causes(failed)]
    return "## Causes\n\n" + markdown_table(["rule", "cause", "classes"], rows) if rows else ""


def _faults(title: str, failed: Sequence[Report]) -> str:
    with_repairs = bool(repairs(failed))
    rows = []
    for report in failed:
        for modes, fault in report.merged_faults:
            cause = " ".join(filter(None, [_text(fault.cause), fault.rule]))
            row = [code(report.label), " ".join(modes), fault.level, _what(fault), cause or "not known"]
            rows.append([*row, _text(after(report))] if with_repairs else row)
    if not rows:
        return ""
    header = ["class", "mode", "level", "what", "cause", *(["after wrap_blocks"] if with_repairs else [])]
    return f"## {title}\n\n" + markdown_table(header, rows)


def _refusals(said: Sequence[tuple[str, str]]) -> str:
    """The classes that `wrap_blocks` refuses, or a call of them, with its sentence."""
    rows = [[code(label), _text(sentence)] for label, sentence in said]
    return "## What wrap_blocks refuses\n\n" + markdown_table(["class", "reason"], rows) if rows else ""


def _skips(reports: Sequence[Report]) -> str:
    """The levels that were not judged, and why."""
    rows = [
        [code(report.label), " ".join(modes), " ".join(skip.levels), _text(skip.reason)]
        for report in reports
        for modes, skip in replace(report, modes=tuple(mode for mode in report.modes if not mode.wrong)).merged_skips
    ]
    return (
        "## What could not be judged\n\n" + markdown_table(["class", "mode", "level", "reason"], rows) if rows else ""
    )


def _what(fault: Fault) -> str:
    named = ", ".join(code(name) for name in fault.subjects[:_MOST_SUBJECTS])
    more = len(fault.subjects) - _MOST_SUBJECTS
    where = f"{named}{f' and {more:,} more' if more > 0 else ''}: " if named else ""
    return f"{where}expected {_text(fault.expected)}, saw {_text(fault.seen)}"


def _families(title: str, reports: Sequence[Report]) -> str:
    """The classes by model type, folded because the list is long."""
    if not reports:
        return ""
    by_type = sorted(reports, key=lambda r: (r.model_type, r.label.casefold(), r.label))
    rows = [
        [code(model_type) if model_type else "", " ".join(code(report.label) for report in group)]
        for model_type, group in groupby(by_type, key=lambda r: r.model_type)
    ]
    return f"## {title}\n\n" + _classes_folded(reports, markdown_table(["model type", "classes"], rows))


def _unrepaired(reports: Sequence[Report]) -> str:
    """The classes with their reasons, folded."""
    if not reports:
        return ""
    rows = [[code(report.label), _text(report.problem)] for report in reports]
    table = markdown_table(["class", "reason"], rows)
    return "## What wrap_blocks does not repair\n\n" + _classes_folded(reports, table)


def _classes_folded(reports: Sequence[Report], rows: str) -> str:
    return folded(plural(len(reports), "class", "classes"), rows)


def _unbuilt(reports: Sequence[Report]) -> str:
    rows = [[code(report.label), _text(why_no_verdict(report))] for report in reports]
    return "## What could not be built\n\n" + markdown_table(["class", "reason"], rows) if rows else ""


def _sources(reports: Sequence[Report]) -> str:
    """The classes that are not of transformers, with the last folder and the name of their file."""
    rows = sorted([code(report.label), code("/".join(Path(report.facts.source).parts[-2:]))] for report in reports)
    return "## What came with its own code\n\n" + markdown_table(["class", "file"], rows) if rows else ""


def _text(text: str) -> str:
    """A sentence without what depends on the machine."""
    return prose(portable(text))
