"""Edits of texts: which repairs can be made at once, and the text after them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from ckpt_surgery.codemods.finding import Applicability, Edit, Finding


def choose_repairs(findings: Iterable[Finding], unsafe: bool, frozen: Collection[str]) -> list[Finding]:
    """The findings to repair in one round: no two of them edit the same text; the others wait for the next.

    Args:
        unsafe: also choose findings whose repair may break callers outside the tree.
        frozen: paths of files that must not change.
    """
    wanted = {Applicability.SAFE, Applicability.UNSAFE} if unsafe else {Applicability.SAFE}
    repairable = [
        finding
        for finding in findings
        if finding.edits and finding.applicability in wanted and not any(edit.path in frozen for edit in finding.edits)
    ]
    taken: dict[str, set[Edit]] = defaultdict(set)
    chosen: list[Finding] = []
    # Signatures go first: what they ask of their callers must not be cut short by another repair there.
    for finding in sorted(repairable, key=_most_files_first):
        if not any(_overlaps(edit, taken[edit.path]) for edit in finding.edits):
            chosen.append(finding)
            for edit in finding.edits:
                taken[edit.path].add(edit)
    return chosen


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap; the same edit twice counts once."""
    for edit in sorted(set(edits), reverse=True, key=lambda edit: (edit.start, edit.end)):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _most_files_first(finding: Finding) -> tuple[int, int]:
    return -len({edit.path for edit in finding.edits}), -len(finding.edits)


def _overlaps(edit: Edit, taken: set[Edit]) -> bool:
    """Whether an edit overlaps another that is not equal to it."""
    if edit in taken:
        return False
    return any(
        (edit.start < other.end and other.start < edit.end) or (edit.start == other.start and edit.end == other.end)
        for other in taken
    )
