"""The report of `check` as a page that needs no network: findings with their code, and what repairs change."""

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

_AROUND = 3
"""Lines of code shown before and after the one of a finding."""


def to_html(report: CheckReport) -> str:
    """Render the report as a page: files with faults first, and what the repair of each finding changes by itself."""
    edits = edits_of(report.shown)
    said = [
        f"<p>{coded(line)}</p>" for line in (*report.summary_lines(width=10_000), *map(str, report.result.problems))
    ]
    summaries = {rule.code: rule.summary for rule in report.rules}
    body = ["<header>", "<h1>Gradient checkpointing, checked</h1>", *said, "</header>", "<main>"]
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
    """Yield the lines around a finding, its own marked."""
    lines = (text_at(finding.path) or "").splitlines()
    first = max(finding.line - _AROUND, 1)
    for number, line in enumerate(lines[first - 1 : finding.line + _AROUND], first):
        text = f"{number:>5}  {escape(line)}"
        yield f"<mark>{text}</mark>" if number == finding.line else text


def _diff(edits: Sequence[Edit]) -> Iterator[str]:
    """Yield what edits change, file by file."""
    for path in dict.fromkeys(edit.path for edit in edits):
        before = text_at(path) or ""
        after = apply_edits(before, [edit for edit in edits if edit.path == path])
        shown = display_path(path)
        for line in difflib.unified_diff(lines_of(before), lines_of(after), shown, shown, n=_AROUND):
            kind = {"+": "ok", "-": "failed"}.get(line[0], "")
            text = escape(line.rstrip("\r\n"))
            yield f'<span class="changed {kind}">{text}</span>' if kind else text
