"""The page and its plots as text; `test_browser` tests its behavior."""

from __future__ import annotations

import builtins
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.measure.report import Report
from ckpt_surgery.report import html as html_report
from ckpt_surgery.report.html import html_page, write_html
from ckpt_surgery.report.plots import CSS_COLOURS, Plot, PlotError
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from tests.report import examples

MOST_BYTES = 15_000_000
VOID = {"meta", "input", "link", "br"}


class Tags(HTMLParser):
    """The elements of a page by name, and those not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.crossed: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


@pytest.mark.parametrize(
    "reports",
    [[report] for report in examples.every_kind()] + [examples.every_kind(), examples.with_repairs(), []],
    ids=[report.model.split("<")[0] for report in examples.every_kind()] + ["all", "repaired", "none"],
)
def test_every_element_is_closed(reports: list[Report]) -> None:
    tags = Tags(html_page(reports))
    assert (tags.open, tags.crossed) == ([], [])
    assert tags.seen.count("script") == 1
    assert tags.seen.count("details") >= len(reports)
    assert Tags("<div><p></div>").crossed == ["div"]
    assert Tags("<div><p></p>").open == ["div"]


@pytest.mark.parametrize("others", [[examples.healthy()], []])
def test_whatever_a_report_holds_is_escaped(others: list[Report]) -> None:
    page = html_page([examples.hostile(), *others])
    assert page.count("<script>") == 1
    assert page.count("</style>") == 1
    assert escape(examples.HOSTILE) in page
    shown = "".join(Tags(page).text)
    assert f"Evil{examples.HOSTILE}" in shown
    assert "]]> & </style>\nnext line" in shown


def test_the_page_says_in_words_what_its_colours_say_and_loads_nothing(tmp_path: Path) -> None:
    page = html_page(examples.every_kind())
    assert 'GPTBigCodeForCausalLM<span class="spoken">, failed in non_reentrant: recompute, cost; ' in page
    assert 'LlamaForCausalLM<span class="spoken">, ok</span>' in page
    assert '<i class="cell failed" title="reentrant, set: failed">\u2715</i>' in page
    assert f'content="{escape(html_report.POLICY)}"' in page
    assert not re.search(r"<(?:link|iframe|img|base|form|object)\b|@import|url\((?!#)| src=", page)
    assert set(re.findall(r'href="(.)', page)) == {"#"}
    shown = "".join(Tags(page).text)
    assert "wrap_blocks" not in shown
    assert "as they are" not in shown
    write_html(examples.every_kind()[::-1], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    assert html_page(examples.every_kind()[1:]) != page


def test_what_policies_keep_is_a_table_with_the_names_that_matched_nothing() -> None:
    kept = (
        KeptSummary("attention", ("aten._scaled_dot_product_flash_attention",), 6, 3 * 2**20, 2_500_000),
        KeptSummary("<router>", (), 0, 0, matched=False),
    )
    measured = examples.mode_report("non_reentrant")
    page = html_page([examples.report("Llama", replace(measured, kept_results=kept))])
    shown = " ".join("".join(Tags(page).text).split())
    assert "modesaveoperatorsresults keptbytes addedwork not done again" in shown
    assert "non_reentrantattentionaten._scaled_dot_product_flash_attention63.0 MiB2.5 MFLOP" in shown
    assert "<router>nothing of the kind has run00 B0 FLOP" in shown
    assert "bytes added" not in html_page([examples.report("Llama", measured)])


def header(reports: list[Report]) -> str:
    """Return what the top of the page says, above the causes and the table."""
    (top,) = re.findall(r"<header>.*?</header>", html_page(reports), re.DOTALL)
    return " ".join(" ".join(Tags(top).text).split())


def test_the_header_counts_before_and_after_a_surgery() -> None:
    top = header(examples.with_repairs())
    before, after = top.split(" as they are ")[1].split(" after wrap_blocks ")
    assert before == "4 \u2715 failed 2 \u2713 ok 2 \u2298 unsupported 1 \u2013 not built"
    assert after == "2 \u2715 failed 3 \u2713 ok 2 \u2298 refused 1 \u2013 not repaired"
    healed = header([examples.after_surgery(examples.healthy()), examples.after_surgery(examples.lost())])
    assert healed.endswith("as they are 1 \u2715 failed 1 \u2713 ok after wrap_blocks 0 \u2715 failed 2 \u2713 ok")
    assert "after wrap_blocks: failed" in header([examples.remaining()])
    assert "after wrap_blocks: ok" in header([examples.after_surgery(examples.lost())])


def test_a_lost_gradient_is_never_counted_as_equal() -> None:
    equal = "<p>Gradients, non_reentrant: 24 equal up to rounding.</p>"
    assert equal in html_page([examples.report("A", examples.mode_report("non_reentrant"))])
    assert equal in html_page([examples.endless()]), "nothing is claimed of a mode that did not end"
    page = html_page([examples.lost()])
    assert (
        "Gradients, non_reentrant: 186 equal up to rounding; reentrant: 2 equal up to rounding, 184 in one run only"
    ) in page
    assert page.count("<td>equal</td><td>in one run only</td>") == 10
    svg = Plot.of(examples.lost(), key="m")[2].svg
    assert ">one run only</text>" in svg
    assert svg.count(": in one run only</title>") == 184


def test_many_models_have_plots_only_where_something_failed() -> None:
    reports = examples.survey(700)
    page = html_page(reports)
    assert len(page.encode()) < MOST_BYTES
    failed = sum(report.status == "failed" for report in reports)
    assert failed > html_report.MOST_PLOTTED
    with_plots = re.findall(r'data-status="(\w+)"(?:(?!<details class="model).)*?<div class="plots">', page, re.DOTALL)
    assert with_plots == ["failed"] * html_report.MOST_PLOTTED


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(PlotError, match=r"not installed: run `python -m pip install matplotlib`"):
        html_page([examples.drifted()])
    assert "TimmBackbone" in html_page([examples.not_built()])


@pytest.mark.parametrize("report", examples.every_kind(), ids=lambda report: report.model.split("<")[0])
def test_plots_are_well_formed_small_and_coloured_by_the_page(report: Report) -> None:
    for plot in Plot.of(report, key="m1"):
        ElementTree.fromstring(plot.svg)
        assert len(plot.svg) < 120_000
        assert not any(drawn in plot.svg for drawn in CSS_COLOURS)
        assert not re.search(r"#[0-9a-f]{6}\b(?![^<]*</)", plot.svg)
        assert "font-family" not in plot.svg
        assert '<title id="m1-' in plot.svg
        referred = set(re.findall(r'(?:href="|url\()#([^")]+)', plot.svg))
        ids = re.findall(r' id="([^"]+)"', plot.svg)
        assert len(ids) == len(set(ids))
        assert referred <= set(ids)
        assert all(name.startswith("m1-") for name in ids)


def test_plots_have_their_units_peaks_floors_and_names() -> None:
    bytes_plot, _, errors_plot = Plot.of(examples.healthy(), key="m")
    assert "held (KiB)" in bytes_plot.svg
    assert {"forward", "backward"} <= set(re.findall(r">([a-z]+)</text>", bytes_plot.svg))
    assert "Peaks: without 576 KiB, non_reentrant 156 KiB, reentrant 156 KiB." in bytes_plot.caption
    assert "not finite" not in errors_plot.svg
    svg = Plot.of(examples.drifted(), key="m")[2].svg
    assert ">equal</text>" in svg
    assert ">not finite</text>" in svg
    assert svg.count("<title>model.layers.") == 48
    assert "<title>model.layers.4.mlp.up_proj.weight: not finite</title>" in svg
    assert "<title>model.layers.0.attention.q_proj.weight: equal</title>" in svg


def test_of_many_parameters_the_worst_of_neighbours_are_drawn() -> None:
    plot = Plot.of(examples.huge(), key="m")[2]
    assert plot.svg.count("<title>model.layers.") == 375
    assert "Of neighbours only the worst is shown." in plot.caption
    worst = examples.huge().modes[0].errors
    drawn = re.findall(r"<title>(model\.layers\.\d+\.weight):", plot.svg)
    assert all(worst[name] == max(list(worst.values())[8 * at : 8 * at + 8]) for at, name in enumerate(drawn))
