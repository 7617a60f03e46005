"""`apply`: repairs in rounds until nothing changes any more, then written file by file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.parts import by_part
from ckpt_surgery.codemods.repairs.unused_imports import unused_imports
from ckpt_surgery.static.copies import diverged_copies
from ckpt_surgery.static.discover import SourceFile, discover, read_sources
from ckpt_surgery.static.edits import choose_repairs
from ckpt_surgery.static.options import check_options
from ckpt_surgery.static.reading import FileParser, ParsedFile, Rewriting, gc_paused
from ckpt_surgery.static.results import ApplyResult, FileChange, Note, Problem, Progress
from ckpt_surgery.static.snapshot import RULE_CODES, Snapshot, line_length, select_codes, take_snapshot
from ckpt_surgery.static.write import read_only, write_atomically

_MAX_ROUNDS = 8
"""A tree needs three: branches and base classes, then arguments, then nothing."""


@dataclass(slots=True)
class _RepairState:
    """The tree between two rounds, and what was done to it so far."""

    snapshot: Snapshot
    original: dict[str, SourceFile]
    parsed_before: dict[str, ParsedFile]
    codes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    made: dict[str, list[tuple[SourceRepair, ...]]] = field(default_factory=lambda: defaultdict(list))
    """The repairs of each file, round by round."""
    frozen: set[str] = field(default_factory=set)
    """Files that are left alone: read-only ones, and those whose repair does not parse."""
    restored: set[str] = field(default_factory=set)
    """Files that are as they were after all: those that never settle, or could not be written."""
    notes: list[Note] = field(default_factory=list)
    together: set[frozenset[str]] = field(default_factory=set)
    """The files that the repair of one finding edits at once."""
    repaired: list[Finding] = field(default_factory=list)


def apply(
    paths: str | Path | Sequence[str | Path],
    *,
    unsafe: bool = False,
    write: bool = True,
    select: str | Collection[str] = (),
    ignore: str | Collection[str] = (),
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

    A file whose repair does not parse, or that a second run would change again, is left as it was and named in
    the notes. The options that are not listed here are those of `check`.

    Args:
        unsafe: also make repairs that may break callers outside the tree.
        write: False to only return what would change.
        families: model folders; only findings in these are repaired, with all that they need elsewhere.
        copies_follow: something else updates a `# Copied from` copy after its source, as upstream's checkers do:
            leave an unchanged copy as it is, with its comment.

    Raises:
        OptionError: a code that no rule has, no rule left, an empty path, or a value that an option does not take.
    """
    start = perf_counter()
    selected = select_codes(select, ignore)
    check_options(RULE_CODES, exclude=exclude, per_file_ignores=per_file_ignores, families=families, jobs=jobs)
    files, problems = discover(paths, exclude=exclude)
    sources, unreadable = read_sources(files)
    problems += unreadable
    ignores = per_file_ignores or {}
    with gc_paused():
        snapshot, unparsed = take_snapshot(sources, jobs=jobs, cache=cache, progress=progress)
        state = _RepairState(snapshot, {source.path: source for source in sources}, dict(snapshot.parsed))
        if write:
            state.frozen = {source.path for source in sources if read_only(source.path)}
        with FileParser(jobs, use_cache=False, progress=progress) as parser:
            before, left = _repair(state, parser, selected, ignores, unsafe, include_unsupported, frozenset(families))
            _clean_up(state, parser, copies_follow)
    changes = _changes(state)
    problems += unparsed
    problems += [
        Problem(path, "left as it was: it is read-only; make it writable and run again")
        for path in sorted(state.frozen & {repair.path for finding in before for repair in finding.repairs})
        if read_only(path)
    ]
    if write:
        failed = [problem for change in changes if (problem := _write(state, change))]
        problems += failed
        unwritten = {problem.path for problem in failed}
        changes = [change for change in changes if change.path not in unwritten]
        state.restored |= unwritten
    if state.restored:
        left = _left_as_found(state, before, left, state.restored)
    return ApplyResult(
        changes=tuple(changes),
        findings=tuple(before),
        left=tuple(left),
        problems=tuple(problems),
        notes=tuple(state.notes),
        together=tuple(sorted(tuple(sorted(paths)) for paths in state.together if len(paths) > 1)),
        repaired=tuple(state.repaired),
        files=len(sources),
        written=write,
        unsafe=unsafe,
        seconds=perf_counter() - start,
    )


def _repair(
    state: _RepairState,
    parser: FileParser,
    selected: frozenset[str],
    ignores: Mapping[str, Collection[str]],
    unsafe: bool,
    include_unsupported: bool,
    families: frozenset[str],
) -> tuple[list[Finding], list[Finding]]:
    """Edit in rounds until none is left to make; return the findings before the first and after the last."""
    before: list[Finding] | None = None
    findings: list[Finding] = []
    for _ in range(_MAX_ROUNDS):
        findings = state.snapshot.findings(state.snapshot.context(selected, include_unsupported))
        findings, _ = state.snapshot.unsuppressed(findings, ignores)
        findings = [finding for finding in findings if not families or finding.family in families]
        before = findings if before is None else before
        chosen = choose_repairs(findings, unsafe, state.frozen)
        if not chosen:
            break
        _edit_files(state, parser, chosen)
    else:
        unstable = choose_repairs(findings, unsafe, state.frozen)
        _restore(state, {repair.path for finding in unstable for repair in finding.repairs})
    return before or [], findings


def _clean_up(state: _RepairState, parser: FileParser, copies_follow: bool) -> None:
    """Remove what the rounds leave behind: unused imports, and comments on copies that are no copies any more."""
    repairs: dict[str, list[SourceRepair]] = defaultdict(list)
    width = line_length(next(iter(state.original), ""))  # one tree, one line length, as in the rules' context
    for path, source in state.snapshot.sources.items():
        before = state.original[path].text
        if source.text != before:
            unused = unused_imports(path, state.snapshot.parsed[path].facts, before, source.text, width)
            if unused:
                repairs[path].append(unused)
    for repair, note in diverged_copies(state.snapshot, state.original, state.parsed_before, follow=copies_follow):
        state.notes.append(note)
        repairs[repair.path].append(repair)
    for source, problem in parser.tidy(_in_parts(state, repairs)):
        if problem is None:
            state.snapshot.sources[source.path] = source
            state.made[source.path].append(tuple(repairs[source.path]))


def _edit_files(state: _RepairState, parser: FileParser, chosen: list[Finding]) -> None:
    """Make the repairs of one round in memory.

    Where one cannot be made, or its result does not parse, its file is frozen and none is made.
    """
    repairs: dict[str, dict[SourceRepair, None]] = defaultdict(dict)
    for finding in chosen:
        for repair in finding.repairs:
            repairs[repair.path][repair] = None
    results = parser.rewrite(_in_parts(state, repairs))
    broken = [result.path for _, result in results if isinstance(result, Problem)]
    if broken:
        state.frozen.update(broken)
        state.notes += [Note(path, "left alone: its repair would not parse; please report it") for path in broken]
        return
    state.repaired += chosen
    for finding in chosen:
        state.together.add(frozenset(repair.path for repair in finding.repairs))
        for repair in finding.repairs:
            state.codes[repair.path].add(finding.code)
    _keep(state, results, repairs)


def _in_parts(state: _RepairState, repairs: Mapping[str, Collection[SourceRepair]]) -> list[Rewriting]:
    """The files that are to be rewritten, each with its repairs by the part that they are made in."""
    sources, parsed = state.snapshot.sources, state.snapshot.parsed
    return [(sources[path], by_part(sources[path].text, parsed[path].facts, repairs[path])) for path in repairs]


def _keep(
    state: _RepairState,
    results: Sequence[tuple[SourceFile, ParsedFile | Problem]],
    repairs: Mapping[str, Collection[SourceRepair]],
) -> None:
    """Take the files as they are after their repairs; one that does not parse then stays as it was."""
    for source, result in results:
        if isinstance(result, ParsedFile):
            state.snapshot.sources[source.path] = source
            state.snapshot.parsed[source.path] = result
            state.made[source.path].append(tuple(repairs[source.path]))


def _restore(state: _RepairState, paths: set[str]) -> None:
    """Undo the repair of files that each round changes again."""
    state.restored |= paths
    for path in sorted(paths):
        state.notes.append(Note(path, "left alone: a second run would change it again; please report it"))
        state.snapshot.sources[path] = state.original[path]
        state.snapshot.parsed[path] = state.parsed_before[path]


def _changes(state: _RepairState) -> list[FileChange]:
    changes: list[FileChange] = []
    for path, source in state.snapshot.sources.items():
        before = state.original[path].text
        if source.text != before:
            changes.append(
                FileChange(path, before, source.text, tuple(sorted(state.codes[path])), tuple(state.made[path]))
            )
    return changes


def _left_as_found(
    state: _RepairState, before: Sequence[Finding], left: Sequence[Finding], kept: Collection[str]
) -> list[Finding]:
    """What is left where these files stay as they were: nothing in them is repaired, all that was found is left."""

    def concerned(finding: Finding) -> bool:
        return finding.path in kept or any(repair.path in kept for repair in finding.repairs)

    state.repaired = [finding for finding in state.repaired if not concerned(finding)]
    remaining = [finding for finding in left if not concerned(finding)]
    return sorted([*remaining, *filter(concerned, before)], key=lambda finding: finding.sort_key)


def _write(state: _RepairState, change: FileChange) -> Problem | None:
    source = state.original[change.path]
    return write_atomically(change.path, change.before, change.after, encoding=source.encoding, bom=source.bom)
