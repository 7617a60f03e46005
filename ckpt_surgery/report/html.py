"""Render reports as one HTML page that needs no network: counts, causes, a table to filter and sort, details.

Only filtering and sorting need the script. The details of a row are in `html_detail`, the style in `page/page.css`,
the behaviour in `page/page.js`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVEL_TITLES, Level, Mode
from ckpt_surgery.report.html_detail import SIGNS, detail
from ckpt_surgery.report.plots import Plot
from ckpt_surgery.report.summary import MOST_CAUSES, Overview, more_causes
from ckpt_surgery.text import percent, plural

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
MOST_PLOTTED = 40
"""The number of models with plots. Of more models, only those that failed have plots."""
MOST_PLOT_CHARACTERS = 9_000_000
"""The size of all plots in a page, which is to stay below 10 MB."""
_LOOKS = {
    "failed": ("failed", SIGNS["failed"]),
    "ok": ("ok", SIGNS["ok"]),
    "skipped": ("skipped", SIGNS["skipped"]),
    "refused": ("refused", SIGNS["refused"]),
    "unsupported": ("unsupported", "\u2298"),
    "not built": ("unbuilt", "\u2013"),
    "not repaired": ("unrepaired", "\u2013"),
}
"""The style and the sign of each status, before or after `wrap_blocks`, in the order of the header."""


def write_html(reports: Sequence[Report], path: Path | str) -> None:
    """Write reports as one page that needs no network.

    Args:
        reports: What `verify` returned, in any order.
        path: The file to write; an existing one is replaced.

    Raises:
        PlotError: As in `html_page`.
        OSError: The file cannot be written.
    """
    Path(path).write_text(html_page(reports), encoding="utf-8")


def html_page(reports: Sequence[Report]) -> str:
    """Render what `verify` returned as one page, which is the same for the same reports.

    Plots are drawn for at most `MOST_PLOTTED` of them; the others have tables.

    Raises:
        PlotError: There is something to draw, and matplotlib is not installed.
    """
    shown = Overview(reports).ordered
    single = len(shown) == 1
    plots = _plots(shown)
    title = f"{shown[0].label}: {shown[0].status}" if single else "Gradient checkpointing, verified"
    # counts, filters and sorting are of no use on a page with one model
    hidden = " hidden" if single else ""
    body = [
        _header(shown, title, hidden),
        "" if single else _causes(shown),
        _controls(shown, hidden),
        _models(shown, plots),
    ]
    return page_of(title, body, _asset("page.js"))


def page_of(title: str, body: Sequence[str], script: str = "") -> str:
    """Render a whole page in the style of reports.

    Args:
        title: Plain text.
        body: Parts of HTML; empty ones are left out.
        script: JavaScript that runs at the end of the page.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + (f"\n<script>\n{script}</script>" if script else "")
        + "\n</body>\n</html>\n"
    )


def framed(page: str) -> str:
    """Embed a whole page in another, such as the output of a notebook's cell, without sharing its style."""
    return f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 40rem; border: 0"></iframe>'


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _plots(shown: Sequence[Report]) -> dict[int, list[Plot]]:
    """Draw plots, by index in `shown`, while they fit in; if there are many models, only of those that failed."""
    few = len(shown) <= MOST_PLOTTED
    chosen = [index for index, report in enumerate(shown) if few or report.status == "failed"][:MOST_PLOTTED]
    plots_by_index: dict[int, list[Plot]] = {}
    left = MOST_PLOT_CHARACTERS
    for index in chosen:
        plots = Plot.of(shown[index], key=f"m{index}") if shown[index].modes else []
        left -= sum(len(plot.svg) for plot in plots)
        if left < 0:
            break
        plots_by_index[index] = plots
    return plots_by_index


def _header(shown: Sequence[Report], title: str, hidden: str) -> str:
    """Render title and versions; for many models also their counts, before and after `wrap_blocks`."""
    single = len(shown) == 1
    about = ["gradient checkpointing, verified"] if single else [plural(len(shown), "model")]
    about += [f"{escape(package)} {escape(version)}" for package, version in Overview(shown).versions.items()]
    about += [f"after wrap_blocks: {report.repair.status}" for report in shown if single and report.repair]
    repaired = Overview(shown).repair_counts
    captioned: list[tuple[str, Mapping[Any, int]]] = [("as they are" if repaired else "", Overview(shown).counts)]
    captioned += [("after wrap_blocks", repaired)] if repaired else []
    groups = ""
    for caption, numbers in captioned:
        # the numbers of each status above a bar of their shares; failed and ok are always there
        rows = [(status, *look, numbers[status]) for status, look in _LOOKS.items() if status in numbers]
        tallies = "".join(
            f'<div class="tally {slug if number else "none"}"><b>{number:,}</b> <span>{sign} {status}</span></div>'
            for status, slug, sign, number in rows
            if number or status in ("failed", "ok")
        )
        bar = "".join(f'<i class="{slug}" style="flex-grow: {number}"></i>' for _, slug, _, number in rows if number)
        heading = f"<h2>{caption}</h2>" if caption else ""
        groups += f'<div>{heading}<div class="tallies">{tallies}</div>'
        groups += f'<div class="bar" aria-hidden="true">{bar}</div></div>'
    return (
        f"<header><h1>{escape(title)}</h1><p>{' &middot; '.join(about)}</p>"
        f'<div class="totals"{hidden}>{groups}</div></header>'
    )


def _causes(shown: Sequence[Report]) -> str:
    """List the causes, each as a button with a bar. A click filters by rule or cause, with the script."""
    rows = Overview(Overview(shown).of_status("failed")).causes
    if not rows:
        return ""
    most = len(rows[0].labels)
    items = "".join(
        f'<li><button type="button" data-find="{escape(cause.rule or cause.text)}">'
        f'<span class="count">{len(cause.labels):,}</span>'
        f'<span class="track"><i style="width: {100 * len(cause.labels) / most:.0f}%"></i></span>'
        f'<span><b class="rule">{escape(cause.rule)}</b> {escape(cause.text)}</span></button></li>'
        for cause in rows[:MOST_CAUSES]
    )
    rest = f"<p>{more}, named in the details.</p>" if (more := more_causes(rows)) else ""
    return f'<section class="causes"><h2>Causes, by the number of models</h2><ul>{items}</ul>{rest}</section>'


def _controls(shown: Sequence[Report], hidden: str) -> str:
    toggles = ""
    for status, number in Overview(shown).counts.items():
        slug, sign = _LOOKS[status]
        toggles += (
            f'<label class="toggle {slug}"><input type="checkbox" checked value="{slug}">'
            f"<span>{sign} {status} <b>{number:,}</b></span></label>"
            if number
            else ""
        )
    return (
        f'<div class="controls" role="search"{hidden}>'
        '<input id="filter" type="search" autocomplete="off" spellcheck="false" '
        'placeholder="Filter: class, type, level, rule, cause" aria-label="Filter the models">'
        f'<div class="toggles" role="group" aria-label="Results shown">{toggles}</div>'
        '<button type="button" id="unfold">Unfold</button><button type="button" id="fold">Fold</button>'
        f'<output id="shown" aria-live="polite">{len(shown):,} of {len(shown):,}</output></div>'
    )


def _models(shown: Sequence[Report], plots: dict[int, list[Plot]]) -> str:
    modes, levels = Overview(shown).measured
    single = len(shown) == 1
    rows = "\n".join(
        _model(report, modes, levels, detail(report, plots.get(index, [])), is_open=single)
        for index, report in enumerate(shown)
    )
    tip = ' title="the share of the possible memory saving, in the mode that saves least"'
    sortable = "".join(
        f'<button type="button" data-sort="{key}" class="{key}"{extra}>{name}</button>'
        for key, name, extra in (("name", "class", ""), ("type", "model type", ""), ("saved", "saved", tip))
    )
    titles = "".join(f'<span title="{LEVEL_TITLES[level]}">{level}</span>' for level in levels)
    groups = "".join(f'<div class="group"><b>{mode}</b><div class="levels">{titles}</div></div>' for mode in modes)
    legend = ""
    if levels:
        signs = "".join(f'<li><i class="cell {cell}">{sign}</i> {cell}</li>' for cell, sign in SIGNS.items())
        meanings = "".join(f"<div><dt>{level}</dt><dd>{LEVEL_TITLES[level]}</dd></div>" for level in levels)
        legend = (
            f'\n<footer><h2>How to read it</h2><ul class="signs">{signs}</ul><dl class="facts">{meanings}</dl>'
            "<p>Each model is run for one training step without checkpointing and once per mode with it, from the "
            "same weights, inputs and seed. A row unfolds to what was measured.</p></footer>"
        )
    return (
        f'<main style="--levels: {max(len(levels), 1)}; --modes: {max(len(modes), 1)}"><div class="scroller">'
        f'<div class="head row">{sortable}<div class="groups">{groups}</div></div>'
        f'<div id="models">\n{rows}\n</div><p id="nothing" hidden>No model matches.</p></div></main>' + legend
    )


def _model(report: Report, modes: Sequence[Mode], levels: Sequence[Level], inside: str, *, is_open: bool) -> str:
    """Render one row, and `inside` folded below it. Screen readers get a sentence in place of the cells."""
    by_mode = {run.mode: run for run in report.modes}
    if report.modes:
        cells = ""
        for run in map(by_mode.get, modes):
            signs = ["<i></i>"] * len(levels)
            if run:
                signs = [
                    f'<i class="cell {cell}" title="{run.mode}, {level}: {cell}">{SIGNS[cell]}</i>'
                    for level, cell in ((level, run.cell(level)) for level in levels)
                ]
            cells += f'<span class="group">{"".join(signs)}</span>'
        cells = f'<span class="groups" aria-hidden="true">{cells}</span>'
    else:
        cells = f'<span class="groups why">{escape(report.why_no_verdict)}</span>'
    failures = "; ".join(f"{run.mode}: {run.verdict}" for run in report.modes if run.wrong)
    then = f"after wrap_blocks: {report.repair.status}" if report.repair else ""
    spoken = f", {report.status}{f' in {failures}' if failures else ''}"
    saved = report.least_saved
    variant = f" <em>{escape(report.variant)}</em>" if report.variant else ""
    badge = f' <b class="badge {_LOOKS[report.repair.status][0]}">{then}</b>' if report.repair else ""
    about = [report.label, report.model_type, report.status, failures, then]
    find = " ".join([*about, *report.rules, *(cause.text for cause in Overview([report]).causes)])
    slug, sign = _LOOKS[report.status]
    return (
        f'<details class="model {slug}" data-status="{slug}" data-name="{escape(report.label.lower())}" '
        f'data-type="{escape(report.model_type.lower())}" data-saved="{"" if saved is None else f"{saved:.4f}"}" '
        f'data-find="{escape(find.lower())}"{" open" if is_open else ""}><summary class="row">'
        f'<span class="name"><i class="sign" aria-hidden="true">{sign}</i>'
        f'{escape(report.model)}{variant}<span class="spoken">{escape(spoken)}</span>{badge}</span>'
        f'<span class="type">{escape(report.model_type)}</span><span class="saved">{percent(saved)}</span>{cells}'
        f"</summary>{inside}</details>"
    )
