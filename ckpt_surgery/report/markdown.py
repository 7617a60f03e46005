"""Render many reports as one Markdown page, kept under version control as the coverage of a release.

It holds no times, no folders and no random order: it changes only when results do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVEL_TITLES, RepairStatus
from ckpt_surgery.report.summary import Overview, portable
from ckpt_surgery.text import code, folded, markdown_table, paragraphs, plural, prose

_MEANING = {
    "failed": "at least one mode differs from the run without checkpointing",
    "ok": "every mode that runs was measured and has no fault",
    "skipped": "none of the requested modes runs",
    "unsupported": "the class does not claim gradient checkpointing",
    "not built": "no tiny model with a working step could be made",
}
_MEANING_AFTER: dict[RepairStatus, str] = {
    "ok": "what runs matches the run without checkpointing",
    "refused": "wrap_blocks refuses the model, or a call of it, and says why",
    "failed": "something is still wrong",
    "not repaired": "there is nothing to compare with",
}
_MOST_SUBJECTS = 3


def survey_markdown(reports: Sequence[Report]) -> str:
    """Render the page: counts, causes, every fault, and the classes that work, are unsupported or were not built.

    If `wrap_blocks` was tried, the page also says what it repairs, what remains, and what it refuses.
    """
    overview = Overview(reports)
    failed, unsupported = overview.of_status("failed"), overview.of_status("unsupported")
    levels = "; ".join(f"{level}: {LEVEL_TITLES[level]}" for level in overview.measured[1])
    count_rows = [[status, f"{number:,}", _MEANING[status]] for status, number in overview.counts.items()]
    rows_after = [[status, f"{number:,}", _MEANING_AFTER[status]] for status, number in overview.repair_counts.items()]
    repaired = overview.repairs
    refusals = [(report.label, sentence) for report, repair in repaired for sentence in repair.refusals]
    unrepaired = [(report.label, repair.problem) for report, repair in repaired if repair.status == "not repaired"]
    unbuilt = [(report.label, report.why_no_verdict) for report in overview.of_status("not built")]
    return (
        paragraphs(
            _heading(overview),
            markdown_table(["result", "classes", "meaning"], [*count_rows, ["all", f"{len(reports):,}", ""]]),
            markdown_table(["after wrap_blocks", "classes", "meaning"], rows_after) if rows_after else "",
            f"Levels: {levels}." if levels else "",
            _section(
                "Causes",
                ["rule", "cause", "classes"],
                [[cause.rule, _text(cause.text), f"{len(cause.labels):,}"] for cause in Overview(failed).causes],
            ),
            _faults("What is broken", failed),
            _faults("What claims no checkpointing, and would be broken", overview.unclaimed),
            _faults("What remains after wrap_blocks", [report.repaired for report, _ in repaired]),
            _section("What wrap_blocks refuses", ["class", "reason"], _reasons(refusals)),
            _section("What could not be judged", ["class", "mode", "level", "reason"], _skips(overview.with_skips)),
            _families("What works", overview.of_status("ok")),
            _families("What claims no checkpointing", [report for report in unsupported if not report.faults]),
            _section("What wrap_blocks does not repair", ["class", "reason"], _reasons(unrepaired), len(unrepaired)),
            _section("What could not be built", ["class", "reason"], _reasons(unbuilt)),
            _section(
                "What came with its own code",
                ["class", "file"],
                sorted(
                    [code(report.label), code("/".join(Path(report.facts.source).parts[-2:]))]
                    for report in reports
                    if report.facts.source
                ),
            ),
        )
        + "\n"
    )


def _heading(overview: Overview) -> str:
    versions = overview.versions
    release = f" in transformers {versions['transformers']}" if "transformers" in versions else ""
    others = " and ".join(f"{package} {version}" for package, version in versions.items() if package != "transformers")
    modes = " and ".join(mode.replace("_", "-") for mode in overview.measured[0])
    fix = " --fix" if overview.repairs else ""
    return (
        f"# Gradient checkpointing{release}\n\n"
        "One training step of a tiny model with random weights per class: without checkpointing, and with it"
        f"{f', {modes}' if modes else ''}{f' ({others})' if others else ''}. "
        f"This page is written by `ckpt_surgery verify --all{fix} --output-format markdown`; do not edit it."
    )


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], classes: int = 0) -> str:
    """Render a table below its title, folded under the number of `classes` if that is given; empty without rows."""
    if not rows:
        return ""
    table = markdown_table(header, rows)
    return f"## {title}\n\n{folded(plural(classes, 'class', 'classes'), table) if classes else table}"


def _faults(title: str, failed: Sequence[Report]) -> str:
    with_repairs = bool(Overview(failed).repairs)
    rows = []
    for report in failed:
        for modes, fault in report.merged_faults:
            cause = " ".join(filter(None, [_text(fault.cause), fault.rule]))
            what = f"expected {_text(fault.expected)}, saw {_text(fault.seen)}"
            if fault.subjects:
                named = ", ".join(code(name) for name in fault.subjects[:_MOST_SUBJECTS])
                more = len(fault.subjects) - _MOST_SUBJECTS
                what = f"{named}{f' and {more:,} more' if more > 0 else ''}: {what}"
            row = [code(report.label), " ".join(modes), fault.level, what, cause or "not known"]
            rows.append([*row, _text(report.after)] if with_repairs else row)
    header = ["class", "mode", "level", "what", "cause", *(["after wrap_blocks"] if with_repairs else [])]
    return _section(title, header, rows)


def _skips(reports: Sequence[Report]) -> list[list[str]]:
    """List why levels were not judged, of modes in which nothing is wrong."""
    return [
        [code(report.label), " ".join(modes), " ".join(skip.levels), _text(skip.reason)]
        for report in reports
        for modes, skip in replace(report, modes=tuple(mode for mode in report.modes if not mode.wrong)).merged_skips
    ]


def _families(title: str, reports: Sequence[Report]) -> str:
    """List the classes by model type, folded because there are many."""
    by_type = sorted(reports, key=lambda r: (r.model_type, r.label.casefold(), r.label))
    rows = [
        [code(model_type) if model_type else "", " ".join(code(report.label) for report in group)]
        for model_type, group in groupby(by_type, key=lambda r: r.model_type)
    ]
    return _section(title, ["model type", "classes"], rows, len(reports))


def _reasons(sentences: Iterable[tuple[str, str]]) -> list[list[str]]:
    return [[code(label), _text(sentence)] for label, sentence in sentences]


def _text(text: str) -> str:
    """Escape a sentence, without what depends on the machine."""
    return prose(portable(text))
