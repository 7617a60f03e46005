"""Render the reports of guards as one HTML page that needs no network, in the style of the pages of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ckpt_surgery.guarding.report import HEADINGS, GuardReport
from ckpt_surgery.guarding.trained_model import Trained
from ckpt_surgery.report.html import page_of
from ckpt_surgery.report.html_detail import coded, rule_tag, table
from ckpt_surgery.text import plural


def guard_page(trained: Sequence[Trained], memory: Sequence[str] = ()) -> str:
    """Return the page as text, the same for the same reports; `memory` are lines on how memory ran out."""
    models = [(model.name, model.said, model.report) for model in trained]
    faults = sum(len(report.told) for _, _, report in models if report is not None)
    title = f"A training run, watched: {plural(faults, 'fault')}"
    header = f"<header><h1>{escape(title)}</h1><p>{plural(len(models), 'model')}</p></header>"
    parts = [part for model in models for part in _parts(*model)]
    if memory:
        said = escape("\n".join(memory))
        parts.insert(0, f'<section class="detail"><h2>Out of memory</h2><pre>{said}</pre></section>')
    return page_of(title, [header, "<main>", *parts, "</main>"])


def _parts(name: str, said: Sequence[str], report: GuardReport | None) -> list[str]:
    parts = [f'<section class="detail"><h2>{escape(name)}</h2>']
    parts += [f'<p class="problem">{coded(sentence)}</p>' for sentence in said]
    if report is None:
        return [*parts, "<p>Not watched.</p></section>"]
    proved = f"{report.proved} of {plural(len(report.blocks), 'block')} proved in {plural(report.steps, 'step')}"
    parts.append(f'<p><span class="badge {"ok" if report.ok else "failed"}">{proved}</span></p>')
    if report.faults:
        items = "".join(f"<li><p>{coded(str(fault))} {rule_tag(fault.rule)}</p></li>" for fault in report.told)
        parts.append(f'<ul class="faults">{items}</ul>')
    parts.append(table(HEADINGS, [list(map(escape, row)) for row in report.rows()], kind="blocks"))
    parts += [f"<p>{coded(note)}</p>" for note in report.notes()]
    proofs = [(row.proof, " + ".join(map(str, row.counts or ()))) for row in report.blocks]
    rows = [(escape(proof.name), proof.status.value, runs, str(proof.compared or "")) for proof, runs in proofs]
    headings = ("block", "gradients", "runs + recomputes", "gradients compared")
    each = table(headings, rows, caption="each block", kind="blocks", open_=False)
    return [*parts, each, "</section>"]
