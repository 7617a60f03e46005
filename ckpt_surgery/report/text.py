"""Reports as lines of plain text: everything about one model, and the table of many.

Nothing is written here; `ckpt_surgery.cli.terminal` adds the colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, Report, Status
from ckpt_surgery.report.summary import (
    Cell,
    after,
    broken_after,
    causes,
    cell,
    columns,
    counts,
    measured,
    merged_faults,
    of_status,
    percent,
    ratio,
    refusals,
    repair_counts,
    repaired,
    rules_of,
    saved_share,
    unclaimed,
    verdict,
)
from ckpt_surgery.text import plural, size

WIDTH = 100
MARKS: dict[Cell, str] = {"ok": "ok", "failed": "FAILED", "skipped": "skipped", "refused": "refused"}
_WORDS: dict[Status, str] = {
    "failed": "failed",
    "ok": "ok",
    "unsupported": "without support for checkpointing",
    "not built": "not built",
}
_MOST_CAUSES = 12
_RULE = "\u2500"  # what the table of a surgery draws, and not every terminal can show


def report_lines(report: Report, *, width: int = WIDTH) -> list[str]:
    """All about one model: what it is, what came of each level and mode, each fault, notes and cost.

    Where `wrap_blocks` was tried, what it is after that stands beside and below. The table of the surgery keeps its
    own width.
    """
    kind = f" ({report.model_type})" if report.model_type else ""
    then = f"; after wrap_blocks: {_shout(report.repair.status)}" if report.repair else ""
    lines = _wrap(f"{report.label}{kind}: {_shout(report.status)}{then}", width)
    about = [report.dtype, plural(report.parameters, "parameter") if report.parameters else ""]
    about += [f"{package} {version}" for package, version in report.versions.items()]
    lines += _wrap(", ".join(filter(None, about)), width, "  ")
    if report.problem:
        lines += _wrap(report.problem, width, "  ")
    elif not report.supported:
        lines += _wrap("It claims no support for checkpointing. What would be if it did:", width, "  ")
    lines += [*_level_lines(report), *_fault_lines(report, width)]
    if report.repair is not None:
        lines += _fault_lines(repaired(report), width, " after wrap_blocks")
    return [*lines, *_cost_lines(report), *_surgery_lines(report, width)]


def _shout(status: str) -> str:
    return MARKS["failed"] if status == "failed" else status


def survey_lines(
    reports: Sequence[Report],
    *,
    width: int,
    seconds: float | None = None,
    show_unbuilt: bool = False,
    hint: bool = True,
) -> list[str]:
    """The table of many models: what failed, in which modes and levels, why, and how many there are of each kind.

    Why some were not built is told with `show_unbuilt`; without it, `hint` names the option that tells.
    """
    failed = of_status(reports, "failed")
    lines = _failed_lines("Failed", failed, width) + _cause_lines(failed, width)
    lines += _failed_lines("Claim no support, and would fail", unclaimed(reports), width)
    lines += _failed_lines("Wrong or refused only after wrap_blocks", broken_after(reports), width)
    unbuilt = of_status(reports, "not built")
    if unbuilt and show_unbuilt:
        lines.append("Not built:")
        for report in unbuilt:
            lines += _wrap(f"{report.label}: {report.problem or 'no mode was run'}", width, "  ", "    ")
        lines.append("")
    found = [f"{number:,} {_WORDS[status]}" for status, number in counts(reports).items() if number]
    took = "" if seconds is None else f" in {_duration(seconds)}"
    said = f": {', '.join(found)}" if found else ""
    then = [f"{number:,} {status}" for status, number in repair_counts(reports).items() if number]
    said += f"; after wrap_blocks: {', '.join(then)}" if then else ""
    hidden = " The reasons why some were not built: --show-unbuilt." if unbuilt and hint and not show_unbuilt else ""
    return lines + _wrap(f"Verified {plural(len(reports), 'class', 'classes')}{took}{said}.{hidden}", width)


def _level_lines(report: Report) -> list[str]:
    shown = columns(report)
    if not shown:
        return []
    runs = [run for _, run in shown]
    levels = [level for level in LEVELS if any(run and (level in run.outcomes or run.faults) for run in runs)]
    titles = LEVEL_TITLES if report.repair is None else dict.fromkeys(LEVELS, "")  # a line has room for one of the two
    rows = [[*(title for title, _ in shown), "level", ""]]
    rows += [[*(MARKS[cell(run, lv)] if run else "-" for run in runs), lv, titles[lv]] for lv in levels]
    return ["", *_table(rows)]


def _fault_lines(report: Report, width: int, when: str = "") -> list[str]:
    faults = merged_faults(report)
    lines = ["", f"  Faults{when}"] if faults else []
    for modes, fault in faults:
        lines += _wrap(f"{' and '.join(modes)}, {fault.level}: {fault}", width, "  - ", "    ")
    refused = refusals(report)
    lines += ["", f"  Refused{when}"] if refused else []
    for mode, sentence in refused:
        lines += _wrap(f"{mode}: {sentence}", width, "  - ", "    ")
    notes = list(dict.fromkeys((note, mode.mode) for mode in report.modes for note in mode.notes))
    lines += ["", f"  Notes{when}"] if notes else []
    for note, mode_name in notes:
        lines += _wrap(f"{mode_name}: {note}", width, "  - ", "    ")
    return lines


def _cost_lines(report: Report) -> list[str]:
    rows = [["cost", "kept", "without", "best", "saved", "backward FLOPs", "best"]]
    for title, mode in columns(report, alone=True):
        if not (mode and (cost := mode.cost)):
            continue
        reference = cost.reference_backward_flops
        flops = (ratio(cost.backward_flops, reference), ratio(cost.best_backward_flops, reference))
        kept = map(size, (cost.kept_bytes, cost.reference_kept_bytes, cost.best_kept_bytes))
        rows.append([title, *kept, percent(saved_share(cost)), *flops])
    if len(rows) == 1:
        return []
    legend = "kept: bytes held from forward to backward; saved: of what checkpointing could save"
    return ["", *_table(rows), f"  ({legend})"]


def _surgery_lines(report: Report, width: int) -> list[str]:
    if report.repair is None:
        return []
    table = [f"  {line.replace(_RULE, '-')}" for line in report.repair.surgery.splitlines()]
    problem = _wrap(f"Not repaired: {report.repair.problem}", width, "  ") if report.repair.problem else []
    return ["", *table, *problem]


def _failed_lines(title: str, failed: Sequence[Report], width: int) -> list[str]:
    """One row for each class that fails; a class too long for its column has a line of its own."""
    if not failed:
        return []
    modes, _ = measured(failed)
    fixed = any(report.repair for report in failed)
    rows = [["class", *(word for mode in modes for word in ([mode, "after"] if fixed else [mode])), "rule"]]
    for report in failed:
        by_mode = {mode.mode: verdict(mode) for mode in report.modes}
        cells = [(by_mode.get(mode, "-"), after(report, [mode]) or "-") for mode in modes]
        told = [word for pair in cells for word in pair[: 1 + fixed]]
        rows.append([report.label, *told, " ".join(rules_of(report)) or "-"])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    room = max(len("class"), width - 2 - sum(2 + other for other in widths[1:]))
    widths[0] = min(widths[0], room)
    lines = [f"{title}: {plural(len(failed), 'class', 'classes')}"]
    for row in rows:
        if len(row[0]) > widths[0]:
            lines.append(f"  {row[0]}")
            row[0] = ""
        lines.append(("  " + "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True))).rstrip())
    return [*lines, ""]


def _cause_lines(failed: Sequence[Report], width: int) -> list[str]:
    found = causes(failed)
    lines = ["Causes, and how many classes have them:"] if found else []
    for cause in found[:_MOST_CAUSES]:
        rule = f"{cause.rule} " if cause.rule else ""
        number = f"{len(cause.labels):>5}  "
        lines += _wrap(f"{rule}{cause.text}", width, f"  {number}", " " * (2 + len(number)))
    if more := len(found) - _MOST_CAUSES:
        lines += [f"  and {plural(more, 'more cause')}"] if more > 0 else []
    return [*lines, ""] if lines else []


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [("  " + "  ".join(map(str.ljust, row, widths))).rstrip() for row in rows]


def _wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Lines of at most `width` columns, save where one name alone is longer: no name is cut."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
