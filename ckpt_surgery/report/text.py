"""Render many reports as a table of plain text; `Report.lines` renders a single one.

Nothing is printed here; `ckpt_surgery.cli.terminal` adds the colours.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.measure.report import Report, Status
from ckpt_surgery.report.summary import MOST_CAUSES, Overview, more_causes
from ckpt_surgery.text import plural, wrapped

_WORDS: dict[Status, str] = {
    "failed": "failed",
    "ok": "ok",
    "skipped": "skipped",
    "unsupported": "without support for checkpointing",
    "not built": "not built",
}


def survey_tables(reports: Sequence[Report], *, width: int, show_unbuilt: bool = False) -> list[str]:
    """Tabulate what failed, where and why; with `show_unbuilt`, also say why models were not built."""
    overview = Overview(reports)
    failed = overview.of_status("failed")
    lines = _failed_lines("Failed", failed, width)
    if causes := Overview(failed).causes:
        lines.append("Causes, and how many classes have them:")
        for cause in causes[:MOST_CAUSES]:
            rule = f"{cause.rule} " if cause.rule else ""
            number = f"{len(cause.labels):>5}  "
            lines += wrapped(f"{rule}{cause.text}", width, f"  {number}", " " * (2 + len(number)))
        more = more_causes(causes)
        lines += [f"  {more}", ""] if more else [""]
    lines += _failed_lines("Claim no support, and would fail", overview.unclaimed, width)
    lines += _failed_lines("Wrong or refused only after wrap_blocks", overview.broken_after, width)
    unbuilt = overview.of_status("not built")
    if unbuilt and show_unbuilt:
        lines.append("Not built:")
        for report in unbuilt:
            lines += wrapped(f"{report.label}: {report.why_no_verdict}", width, "  ", "    ")
        lines.append("")
    return lines


def survey_summary(
    reports: Sequence[Report], *, width: int, seconds: float | None = None, hint: bool = True
) -> list[str]:
    """Count the models of each status; with `hint`, mention the option that shows why some were not built."""
    overview = Overview(reports)
    tally = [f"{number:,} {_WORDS[status]}" for status, number in overview.counts.items() if number]
    minutes, rest = divmod(round(seconds or 0), 60)
    took = "" if seconds is None else f" in {minutes} min {rest} s" if minutes else f" in {seconds:.1f} s"
    counts = f": {', '.join(tally)}" if tally else ""
    after_surgery = [f"{number:,} {status}" for status, number in overview.repair_counts.items() if number]
    repaired = f"; after wrap_blocks: {', '.join(after_surgery)}" if after_surgery else ""
    skipped = len(overview.with_skips)
    unjudged = f"; {plural(skipped, 'class', 'classes')} with a level that could not be judged" if skipped else ""
    hidden = " --show-unbuilt says why some were not built." if hint and overview.of_status("not built") else ""
    return wrapped(
        f"Verified {plural(len(reports), 'class', 'classes')}{took}{counts}{unjudged}{repaired}.{hidden}", width
    )


def _failed_lines(title: str, failed: Sequence[Report], width: int) -> list[str]:
    """Tabulate classes, one per row; a name that is too long for its column has a line to itself."""
    if not failed:
        return []
    modes, _ = Overview(failed).measured
    with_repairs = any(report.repair for report in failed)
    rows = [["class", *modes, *(["after"] if with_repairs else []), "rule"]]
    for report in failed:
        by_mode = {mode.mode: mode.verdict for mode in report.modes}
        words = [by_mode.get(mode, "-") for mode in modes] + ([report.after or "-"] if with_repairs else [])
        rows.append([report.label, *words, " ".join(report.rules) or "-"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(len("class"), width - 2 - sum(2 + other for other in widths[1:]))
    widths[0] = min(widths[0], room)
    lines = [f"{title}: {plural(len(failed), 'class', 'classes')}"]
    for row in rows:
        if len(row[0]) > widths[0]:
            lines.append(f"  {row[0]}")
            row[0] = ""
        lines.append(("  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True))).rstrip())
    return [*lines, ""]
