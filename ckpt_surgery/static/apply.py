"""`apply`: findings to edits to new texts, in rounds until nothing more changes, then written file by file."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from ckpt_surgery.codemods.edits.imports import unused_imports
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.static.cache import Read, Reader, read_sources, without_gc
from ckpt_surgery.static.check import Snapshot, line_length, selection, take
from ckpt_surgery.static.copies import parted_copies
from ckpt_surgery.static.discover import SourceFile, discover
from ckpt_surgery.static.results import ApplyResult, FileChange, Problem, Progress
from ckpt_surgery.static.write import read_only, write_atomically

_ROUNDS = 8
"""A tree settles in three: branches and base classes, then arguments, then nothing."""


@dataclass(slots=True)
class _Work:
    """The tree between two rounds."""

    snapshot: Snapshot
    original: dict[str, SourceFile]
    reads_before: dict[str, Read]
    codes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    frozen: set[str] = field(default_factory=set)
    """Files that are left alone: read-only ones, and those whose result would not do."""
    notes: list[str] = field(default_factory=list)
    together: set[frozenset[str]] = field(default_factory=set)
    """Files that the repair of one finding edits at once."""
    repaired: list[Finding] = field(default_factory=list)


def apply(
    paths: Sequence[str | Path],
    *,
    unsafe: bool = False,
    write: bool = True,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    exclude: Collection[str] = (),
    per_file_ignores: Mapping[str, Collection[str]] | None = None,
    include_unsupported: bool = False,
    families: Collection[str] = (),
    copies_follow: bool = False,
    jobs: int | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> ApplyResult:
    """Repair the files under `paths`, each as a whole or not at all.

    `unsafe` also makes repairs that may break callers outside the tree; `write=False` only tells what
    would change. `families` repairs the findings of these model folders alone, with all that they need elsewhere.
    `copies_follow` says that something brings a `# Copied from` copy along after its source: such a copy is then
    left as it is, and keeps its comment. The other options are those of `check`. A file whose result does not
    parse, or that a second run would change again, is left as it was and named in the notes.
    """
    start = perf_counter()
    files, problems = discover(paths, exclude=exclude)
    sources, unreadable = read_sources(files)
    problems += unreadable
    selected = selection(select, ignore)
    ignores = per_file_ignores or {}
    with without_gc():
        snapshot, unparsed = take(sources, jobs=jobs, cache=cache, progress=progress)
        work = _Work(snapshot, {source.path: source for source in sources}, dict(snapshot.reads))
        if write:
            work.frozen = {source.path for source in sources if read_only(source.path)}
        with Reader(jobs, use_cache=False, progress=progress) as reader:
            found, left = _settle(work, reader, selected, ignores, unsafe, include_unsupported, frozenset(families))
        _tidy(work, copies_follow)
    changes = _changes(work)
    problems += unparsed
    problems += [
        Problem(path, "left as it was: it is read-only; make it writable and run again")
        for path in sorted(work.frozen & {edit.path for finding in found for edit in finding.edits})
        if read_only(path)
    ]
    if write:
        failed = [problem for change in changes if (problem := _write(work, change))]
        problems += failed
        changes = [change for change in changes if change.path not in {problem.path for problem in failed}]
    return ApplyResult(
        changes=tuple(changes),
        found=tuple(found),
        left=tuple(left),
        problems=tuple(problems),
        notes=tuple(work.notes),
        together=tuple(sorted(tuple(sorted(paths)) for paths in work.together if len(paths) > 1)),
        repaired=tuple(work.repaired),
        files=len(sources),
        written=write,
        seconds=perf_counter() - start,
    )


def _settle(
    work: _Work,
    reader: Reader,
    selected: frozenset[str],
    ignores: Mapping[str, Collection[str]],
    unsafe: bool,
    include_unsupported: bool,
    families: frozenset[str],
) -> tuple[list[Finding], list[Finding]]:
    """Rounds of edits until there are none; the findings before the first and after the last."""
    found: list[Finding] | None = None
    findings: list[Finding] = []
    for _ in range(_ROUNDS):
        findings = work.snapshot.findings(work.snapshot.context(selected, include_unsupported))
        findings, _ = work.snapshot.unsuppressed(findings, ignores)
        findings = [finding for finding in findings if not families or finding.family in families]
        found = findings if found is None else found
        chosen = choose(findings, unsafe, work.frozen)
        if not chosen:
            break
        _round(work, reader, chosen)
    else:
        _give_up(work, {edit.path for finding in choose(findings, unsafe, work.frozen) for edit in finding.edits})
    return found or [], findings


def _tidy(work: _Work, copies_follow: bool) -> None:
    """What the rounds leave behind: imports that nothing uses any more, copies that are none any more."""
    edits: dict[str, list[Edit]] = defaultdict(list)
    width = line_length(next(iter(work.original), ""))  # one tree, one line length, as in the rules' context
    for path, source in work.snapshot.sources.items():
        before = work.original[path].text
        if source.text != before:
            facts = work.snapshot.reads[path].facts
            edits[path] += unused_imports(path, facts, before, SourceText(source.text), width)
    for edit, note in parted_copies(work.snapshot, work.original, work.reads_before, follow=copies_follow):
        work.notes.append(note)
        edits[edit.path].append(edit)
    for path, those in edits.items():
        source = work.snapshot.sources[path]
        text = edited(source.text, those)
        if those and _parses(text):
            work.snapshot.sources[path] = replace(source, text=text)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def choose(findings: Iterable[Finding], unsafe: bool, frozen: Collection[str]) -> list[Finding]:
    """The findings to repair in one round: no two of them touch the same text; the others wait for the next."""
    wanted = {Applicability.SAFE, Applicability.UNSAFE} if unsafe else {Applicability.SAFE}
    able = [
        f for f in findings if f.edits and f.applicability in wanted and not any(e.path in frozen for e in f.edits)
    ]
    taken: dict[str, set[Edit]] = defaultdict(set)
    chosen: list[Finding] = []
    # Signatures go first: what they ask of their callers may not be cut short by another repair there.
    for finding in sorted(able, key=lambda one: (-len({edit.path for edit in one.edits}), -len(one.edits))):
        if not any(_clashes(edit, taken[edit.path]) for edit in finding.edits):
            chosen.append(finding)
            for edit in finding.edits:
                taken[edit.path].add(edit)
    return chosen


def _clashes(edit: Edit, taken: set[Edit]) -> bool:
    """Whether an edit overlaps another one that is not the very same."""
    if edit in taken:
        return False
    return any(
        (edit.start < other.end and other.start < edit.end) or (edit.start == other.start and edit.end == other.end)
        for other in taken
    )


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap; the same edit twice counts once."""
    for edit in sorted(set(edits), reverse=True, key=lambda one: (one.start, one.end)):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _round(work: _Work, reader: Reader, chosen: list[Finding]) -> None:
    """Make the edits of one round in memory. Where a result does not parse, its findings are dropped whole."""
    edits: dict[str, list[Edit]] = defaultdict(list)
    for finding in chosen:
        for edit in finding.edits:
            edits[edit.path].append(edit)
    texts = {path: edited(work.snapshot.sources[path].text, those) for path, those in edits.items()}
    sources = [replace(work.snapshot.sources[path], text=text, digest="") for path, text in texts.items()]
    read = list(zip(sources, reader.read(sources, "rewriting"), strict=True))
    broken = [source.path for source, one in read if isinstance(one, Problem)]
    if broken:
        work.frozen.update(broken)
        work.notes += [f"{path} is left alone: its repair would not parse; please report it" for path in broken]
        return
    work.repaired += chosen
    for finding in chosen:
        work.together.add(frozenset(edit.path for edit in finding.edits))
        for edit in finding.edits:
            work.codes[edit.path].add(finding.code)
    for source, one in read:
        work.snapshot.sources[source.path] = source
        if isinstance(one, Read):
            work.snapshot.reads[source.path] = one


def _give_up(work: _Work, paths: set[str]) -> None:
    """Files that never settle go back to what they were."""
    for path in sorted(paths):
        work.notes.append(f"{path} is left alone: a second run would change it again; please report it")
        work.snapshot.sources[path] = work.original[path]
        work.snapshot.reads[path] = work.reads_before[path]


def _changes(work: _Work) -> list[FileChange]:
    changes: list[FileChange] = []
    for path, source in work.snapshot.sources.items():
        before = work.original[path].text
        if source.text != before:
            changes.append(FileChange(path, before, source.text, tuple(sorted(work.codes[path]))))
    return changes


def _write(work: _Work, change: FileChange) -> Problem | None:
    source = work.original[change.path]
    return write_atomically(change.path, change.before, change.after, encoding=source.encoding, bom=source.bom)
