"""The wording of whole documents: text, Markdown and the page, compared with the files in `snapshots`.

After a deliberate change, run these tests with `CKPT_SURGERY_UPDATE_SNAPSHOTS=1` and read the difference in git.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckpt_surgery.report.html import html_page
from ckpt_surgery.report.markdown import survey_markdown
from tests.report import examples
from tests.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).parent / "snapshots"


def each_model() -> str:
    reports = [*examples.every_kind(), *examples.with_repairs()]
    return "\n\n".join("\n".join(report.lines()) for report in reports) + "\n"


def many_models() -> str:
    tables = [
        examples.survey_lines(reports, width=100, seconds=432.1, show_unbuilt=True)
        for reports in (examples.every_kind(), examples.with_repairs())
    ]
    return "\n\n".join("\n".join(lines) for lines in tables) + "\n"


def page() -> str:
    """Render the page of a few models, one element a line, without its style, its script and the drawings."""
    text = html_page([examples.drifted(), examples.remaining(), examples.nested(), examples.not_built()])
    text = re.sub(r"<(style|script|svg)\b.*?</\1>", r"<\1></\1>", text, flags=re.DOTALL)
    return re.sub(r">\s*<", ">\n<", text)


DOCUMENTS = {
    "models.txt": each_model,
    "survey.txt": many_models,
    "survey.md": lambda: survey_markdown(examples.every_kind()),
    "survey_after_surgery.md": lambda: survey_markdown(examples.with_repairs()),
    "page.html": page,
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_its_snapshot(name: str) -> None:
    check_snapshot(DOCUMENTS[name](), SNAPSHOTS / name)


def test_every_snapshot_belongs_to_a_document() -> None:
    assert {file.name for file in SNAPSHOTS.iterdir()} == DOCUMENTS.keys()
