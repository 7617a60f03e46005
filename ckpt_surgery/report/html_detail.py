"""Render the details of one model in the page. Everything that comes from a report is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from ckpt_surgery.measure.report import COSTS, Report
from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, Cell, Fault, Mode
from ckpt_surgery.report.plots import Plot
from ckpt_surgery.report.summary import BlockRow, error_text, rule_summary
from ckpt_surgery.text import flops as flop_count
from ckpt_surgery.text import plural, size, some

SIGNS: dict[Cell, str] = {"ok": "\u2713", "failed": "\u2715", "skipped": "\u00b7", "refused": "\u2298"}
_MOST_NAMES = 400  # of what a fault concerns
_FEW_NAMES = 6  # shown without folding
_MOST_ROWS = 60  # of blocks
_WORST = 10  # gradients


def detail(report: Report, plots: Sequence[Plot]) -> str:
    """Render facts, faults, levels, skips, cost, plots, and the tables of blocks and of the worst gradients.

    If `wrap_blocks` was tried, the same follows for its result; the plots show the model without it.
    """
    figures = "".join(
        f'<figure class="plot"><figcaption><b>{escape(p.title)}</b> {escape(p.caption)}</figcaption>{p.svg}</figure>'
        for p in plots
    )
    facts = [
        ("model type", f"<code>{escape(report.model_type)}</code>" if report.model_type else ""),
        ("settings", escape(report.variant)),
        ("code", f"<code>{escape(report.facts.source)}</code>" if report.facts.source else ""),
        ("parameters", f"{report.facts.parameters:,}" if report.facts.parameters else ""),
        ("dtype", escape(report.facts.dtype)),
        *((escape(package), escape(version)) for package, version in report.versions.items()),
        ("time", ", ".join(f"{escape(phase)} {spent:.2f} s" for phase, spent in report.seconds.items())),
        ("again", f"<code>ckpt_surgery verify {escape(report.target)}</code>" if report.target else ""),
    ]
    parts = [
        f'<dl class="facts">{"".join(f"<div><dt>{n}</dt><dd>{v}</dd></div>" for n, v in facts if v)}</dl>',
        _sentences(report),
        f'<div class="pair">{pair}</div>' if (pair := _levels(report) + _costs(report)) else "",
        _policies(report),
        f'<div class="plots">{figures}</div>' if figures else "",
        _blocks(report),
        _errors(report),
    ]
    if report.repair is not None:
        after = report.repaired
        surgery = f"<pre>{escape(report.repair.surgery)}</pre>" if report.repair.surgery else ""
        parts += ["<h3>After wrap_blocks</h3>", _sentences(after), surgery, _blocks(after), _errors(after)]
    return f'<div class="detail">{"".join(parts)}</div>'


def _sentences(report: Report) -> str:
    """Render what is said in sentences: the problem, faults, refusals and skipped levels."""
    problem = f'<p class="problem">{coded(report.problem)}</p>' if report.problem else ""
    faults = "".join(_fault(modes, fault) for modes, fault in report.merged_faults)
    faults += "".join(
        f'<li><p class="where">{mode} \u203a refused</p><p>{coded(sentence)}</p></li>'
        for mode, sentence in report.refusals
    )
    skips = "".join(f"<li>{' and '.join(modes)}: {coded(str(skip))}</li>" for modes, skip in report.merged_skips)
    faults = f'<ul class="faults">{faults}</ul>' if faults else ""
    return problem + faults + (f'<ul class="skips">{skips}</ul>' if skips else "")


def coded(text: str) -> str:
    """Escape text, and mark what is between backticks as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return "`".join(pieces)
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", kind: str = "", open_: bool = True
) -> str:
    """Render a table of HTML cells; unless `open_`, it is folded under its caption."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    titled = f"<caption>{caption}</caption>" if caption and open_ else ""
    rendered = f'<div class="scroll"><table class="{kind}">{titled}<thead><tr>{head}</tr></thead>{body}</table></div>'
    return rendered if open_ else f"<details><summary>{caption}</summary>{rendered}</details>"


def rule_tag(rule: str) -> str:
    """Show the code of a rule, with what the rule finds as its tooltip."""
    return f'<b class="rule" title="{escape(rule_summary(rule))}">{escape(rule)}</b>' if rule else ""


def _fault(modes: Sequence[Mode], fault: Fault) -> str:
    where = f"{' and '.join(modes)} \u203a {fault.level}"
    cause = f'<p class="cause">{coded(fault.cause)} {rule_tag(fault.rule)}</p>' if fault.cause or fault.rule else ""
    names = [f"<code>{escape(name)}</code>" for name in fault.subjects[:_MOST_NAMES]]
    if len(fault.subjects) > _MOST_NAMES:
        names.append(f"and {len(fault.subjects) - _MOST_NAMES:,} more")
    listed = f'<p class="names">{" ".join(names)}</p>' if names else ""
    if len(fault.subjects) > _FEW_NAMES:
        # the first few, with the rest folded
        more = f"<details><summary>{len(fault.subjects) - 3:,} more</summary>{' '.join(names[3:])}</details>"
        listed = f'<div class="names">{" ".join(names[:3])} {more}</div>'
    return (
        f'<li><p class="where">{where}</p><p><span class="key">expected</span> {coded(fault.expected)}; '
        f'<span class="key">saw</span> <strong>{coded(fault.seen)}</strong>.</p>{cause}{listed}</li>'
    )


def _levels(report: Report) -> str:
    shown = report.columns()
    if not shown:
        return ""
    rows = []
    for level in LEVELS:
        cells = [run.cell(level) if run else None for _, run in shown]
        words = [
            f'<span class="cell {cell}" aria-hidden="true">{SIGNS[cell]}</span><span class="spoken">{cell}</span>'
            if cell
            else "-"
            for cell in cells
        ]
        rows.append([f"{level}: {LEVEL_TITLES[level]}", *words])
    return table(["level", *(title for title, _ in shown)], rows, kind="levels")


def _costs(report: Report) -> str:
    rows = report.cost_rows
    caption = "Bytes kept from forward to backward, and the work of the backward"
    return table(["mode", *COSTS], rows, caption=caption, kind="numbers") if rows else ""


def _policies(report: Report) -> str:
    """Tabulate what each name in `save` kept, and what work this saved the recomputes."""
    rows = []
    for title, run in report.columns(alone=True):
        for kept in run.kept_results if run else ():
            operators = some(kept.operators) if kept.matched else "nothing of the kind has run"
            figures = [f"{kept.results:,}", size(kept.bytes), flop_count(kept.flops)]
            rows.append([title, f"<code>{escape(kept.name)}</code>", escape(operators), *figures])
    header = ["mode", "save", "operators", "results kept", "bytes added", "work not done again"]
    caption = "Results that the blocks keep instead of recomputing them"
    return table(header, rows, caption=caption, kind="numbers") if rows else ""


def _blocks(report: Report) -> str:
    rows = BlockRow.of(report)
    modes = [run.mode for run in report.modes if run.blocks]
    cells = []
    for row in rows[:_MOST_ROWS]:
        seen = dict(row.recomputed)
        cells.append([f"<code>{escape(row.name)}</code>", escape(row.kind), f"{row.blocks:,}", str(row.reference)])
        for mode in modes:
            entries = str(seen.get(mode, "-"))
            is_wrong = seen.get(mode, row.reference) != row.reference
            cells[-1].append(f'<strong class="off">{SIGNS["failed"]} {entries}</strong>' if is_wrong else entries)
    total = sum(row.blocks for row in rows)
    caption = f"{plural(total, 'block')}: entries in the backward"
    if len(rows) > _MOST_ROWS:
        caption += f" (the first {_MOST_ROWS} of {len(rows):,} rows)"
    header = ["block", "kind", "blocks", "forward", *modes]
    return table(header, cells, caption=caption, kind="numbers blocks", open_=False) if rows else ""


def _errors(report: Report) -> str:
    """Compare the gradients of each mode, and list the worst of them by their largest error."""
    by_mode = {run.mode: errors for run in report.modes if (errors := run.gradient_errors)}
    if not by_mode:
        return ""
    compared = []
    worst: dict[str, float] = {}
    for mode, errors in by_mode.items():
        values = list(errors.values())
        equal, alone = values.count(0), values.count(None)
        differ = len(values) - equal - alone
        parts = ((equal, "equal up to rounding"), (differ, "with a relative error"), (alone, "in one run only"))
        compared.append(f"{mode}: {', '.join(f'{number:,} {what}' for number, what in parts if number)}")
        for name, error in errors.items():
            severity = math.inf if error is None or not math.isfinite(error) else abs(error)
            worst[name] = max(worst.get(name, 0.0), severity)
    summary = "; ".join(compared)
    wrong = sorted((name for name in worst if worst[name]), key=lambda name: -worst[name])
    if not wrong:
        return f"<p>Gradients, {summary}.</p>"
    rows = [
        [f"<code>{escape(name)}</code>", *(error_text(e[name]) if name in e else "-" for e in by_mode.values())]
        for name in wrong[:_WORST]
    ]
    caption = f"Gradients, {summary}: the {min(len(wrong), _WORST)} worst"
    return table(["parameter", *by_mode], rows, caption=caption, kind="numbers", open_=False)
