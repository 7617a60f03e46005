"""Render the report of `check` as a page that needs no network: findings with their code and repairs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from html import escape

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.report.html import page_of
from ckpt_surgery.report.html_detail import coded
from ckpt_surgery.static.discover import text_at
from ckpt_surgery.static.render.report import CheckReport, display_path, sentence
from ckpt_surgery.static.results import lines_of
from ckpt_surgery.static.text_edits import Edit, apply_edits, edits_of

_CONTEXT_LINES = 3
"""Lines of code shown before and after that of a finding."""


def to_html(report: CheckReport) -> str:
    """Render the report as a page, by file: each finding with what its own repair changes, or else its code."""
    edits = edits_of(report.shown)
    summary_lines = [
        f"<p>{coded(line)}</p>" for line in (*report.summary_lines(width=10_000), *map(str, report.result.problems))
    ]
    summaries = {rule.code: rule.summary for rule in report.rules}
    body = ["<header>", "<h1>Gradient checkpointing, checked</h1>", *summary_lines, "</header>", "<main>"]
    for path, findings in report.by_file.items():
        body += [f'<section class="detail"><h2><code>{escape(display_path(path))}</code></h2>']
        for finding in findings:
            summary = escape(summaries.get(finding.code, ""))
            rule = f'<span class="rule" title="{summary}">{finding.code}</span>'
            lines = "\n".join(_diff(edits[finding]) if edits[finding] else _excerpt(finding))
            body.append(f"<h3>{rule} line {finding.line} ({finding.applicability})</h3>")
            body += [f"<p>{coded(sentence(finding))}</p>", f"<pre>{lines}</pre>"]
        body.append("</section>")
    return page_of("Gradient checkpointing, checked", [*body, "</main>"])


def _excerpt(finding: Finding) -> Iterator[str]:
    """Yield the lines around a finding, with its own marked."""
    lines = (text_at(finding.path) or "").splitlines()
    first = max(finding.line - _CONTEXT_LINES, 1)
    for number, line in enumerate(lines[first - 1 : finding.line + _CONTEXT_LINES], first):
        text = f"{number:>5}  {escape(line)}"
        yield f"<mark>{text}</mark>" if number == finding.line else text


def _diff(edits: Sequence[Edit]) -> Iterator[str]:
    """Yield the lines of a diff of what edits change, file by file."""
    for path in dict.fromkeys(edit.path for edit in edits):
        before = text_at(path) or ""
        after = apply_edits(before, [edit for edit in edits if edit.path == path])
        shown = display_path(path)
        for line in difflib.unified_diff(lines_of(before), lines_of(after), shown, shown, n=_CONTEXT_LINES):
            kind = {"+": "ok", "-": "failed"}.get(line[0], "")
            text = escape(line.rstrip("\r\n"))
            yield f'<span class="changed {kind}">{text}</span>' if kind else text
