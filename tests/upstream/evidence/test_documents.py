"""Each document as a whole, for every kind of series."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt_surgery.upstream.evidence.body import next_commands, pull_request_body
from ckpt_surgery.upstream.evidence.page import evidence_markdown, siblings_markdown
from ckpt_surgery.upstream.evidence.results import Evidence
from tests.snapshots import check_snapshot
from tests.upstream.evidence import evidence_cases as cases

SNAPSHOTS = Path(__file__).parent / "snapshots"
SERIES = {**cases.every_kind(), "large": cases.large(), "odd": cases.odd()}


def commands(evidence: Evidence) -> str:
    return "".join(f"{line}\n" for line in next_commands(evidence, Path("/out/it's here"), Path("/a space/checkout")))


DOCUMENTS: dict[str, Callable[[Evidence], str]] = {
    "evidence.md": evidence_markdown,
    "body.md": lambda evidence: pull_request_body(evidence, cases.TEMPLATE),
    "siblings.md": siblings_markdown,
    "next_commands.sh": commands,
}


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("name", SERIES)
def test_the_document_is_the_snapshot(name: str, document: str) -> None:
    check_snapshot(DOCUMENTS[document](SERIES[name]), SNAPSHOTS / name / document)
