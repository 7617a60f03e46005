"""Turn repairs into text edits: choose the repairs of one round, compute their edits, and apply edits."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.static.discover import source_at
from ckpt_surgery.static.reading import ParsedFile, parse_file
from ckpt_surgery.static.results import FAULTS, Note, Problem, lines_of


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace `source[start:end]` of one file by `text`.

    `start` and `end` count characters (not bytes) of the decoded file with its own line endings.
    """

    path: str
    start: int
    end: int
    text: str


def choose_repairs(findings: Iterable[Finding], unsafe: bool, frozen: Collection[str]) -> list[Finding]:
    """Choose the findings to repair in one round, of which no two change the same text; the others wait.

    Args:
        findings: the findings of the round.
        unsafe: whether to include repairs that may break callers outside the tree.
        frozen: files that no repair may change.
    """
    wanted = FAULTS if unsafe else (Applicability.SAFE,)
    repairable = [
        f for f in findings if f.repairs and f.applicability in wanted and not any(r.path in frozen for r in f.repairs)
    ]
    taken: dict[str, set[SourceRepair]] = defaultdict(set)
    chosen: list[Finding] = []
    # Repairs of many places go first: a signature waits for all its callers if another repair takes one of them.
    repairable.sort(key=lambda finding: (-len({repair.path for repair in finding.repairs}), -len(finding.repairs)))
    for finding in repairable:
        if not any(repair.overlaps(taken[repair.path]) for repair in finding.repairs):
            chosen.append(finding)
            for repair in finding.repairs:
                taken[repair.path].add(repair)
    return chosen


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text after edits that do not overlap; duplicates are made once."""
    for edit in sorted(set(edits), reverse=True, key=lambda edit: (edit.start, edit.end)):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def edits_of(findings: Iterable[Finding]) -> Mapping[Finding, Sequence[Edit]]:
    """Return the edits that the repairs of each finding would make alone; none for a finding without repairs.

    Files that cannot be read any more, or that have changed too much for the repairs, get no edits.
    """
    files: dict[str, ParsedFile | Problem | Note | None] = {}
    edits: dict[Finding, list[Edit]] = {}
    for finding in findings:
        by_path: dict[str, list[SourceRepair]] = defaultdict(list)
        for repair in finding.repairs:
            by_path[repair.path].append(repair)
        edits[finding] = []
        for path, repairs in by_path.items():
            if path not in files:
                source = source_at(path)
                files[path] = parse_file(source, use_cache=True) if source else None
            file = files[path]
            edits[finding] += _edits(file, repairs) if isinstance(file, ParsedFile) else ()
    return edits


def _edits(file: ParsedFile, repairs: Collection[SourceRepair]) -> Iterator[Edit]:
    """Yield the edits of whole lines that repairs make in a file."""
    try:
        parts = file.rewritten_parts(repairs)
    except Exception as error:  # `apply` reports it as a problem; here only a debugging run prints the traceback
        Problem.bug(file.source.path, "repairing it", error)
        return
    for part, after in parts or ():
        old, new = lines_of(file.source.text[part.start : part.end]), lines_of(after)
        starts = [*accumulate(map(len, old), initial=part.start)]
        for kind, low, high, new_low, new_high in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
            if kind != "equal":
                yield Edit(file.source.path, starts[low], starts[high], "".join(new[new_low:new_high]))
