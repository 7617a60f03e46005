"""`apply`: make repairs in rounds until nothing changes any more, then write file by file."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from time import perf_counter

from ckpt_surgery.codemods.finding import Finding
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.unused_imports import unused_imports
from ckpt_surgery.static.copies import diverged_copies
from ckpt_surgery.static.discover import discover, read_sources
from ckpt_surgery.static.options import check_options
from ckpt_surgery.static.reading import FileParser, ParsedFile, gc_paused
from ckpt_surgery.static.results import ApplyResult, FileChange, Note, Problem, Progress
from ckpt_surgery.static.snapshot import RULE_CODES, Snapshot, select_codes, take_snapshot
from ckpt_surgery.static.text_edits import choose_repairs
from ckpt_surgery.static.write import READ_ONLY, read_only, write_atomically

_MAX_ROUNDS = 8
"""A tree needs three: branches and base classes, then arguments, then nothing."""


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
    the notes. Options that are not listed here are those of `check`.

    Args:
        unsafe: also make repairs that may break callers outside the tree.
        write: False to only return what would change.
        families: model folders; only findings in these are repaired, with what their repairs need elsewhere.
        copies_follow: leave an unchanged `# Copied from` copy as it is, with its comment, because something else
            updates it after its source, as upstream's checkers do.

    Raises:
        OptionError: a code that no rule has, no rule left, an empty path, or a value that an option does not take.
    """
    start = perf_counter()
    selected = select_codes(select, ignore)
    check_options(RULE_CODES, exclude=exclude, per_file_ignores=per_file_ignores, families=families, jobs=jobs)
    files, problems = discover(paths, exclude=exclude)
    sources, unreadable = read_sources(files)
    locked = {source.path for source in sources if write and read_only(source.path)}
    with gc_paused():
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        snapshot, unparsed = take_snapshot(
            sources,
            map(Path, given),
            include_unsupported=include_unsupported,
            jobs=jobs,
            cache=cache,
            progress=progress,
        )
        named = {select} if isinstance(select, str) else select
        now = replace(snapshot, files={**snapshot.files})
        tree = _Tree(FileParser(jobs, progress), now, snapshot, {*locked}, named)

        def find() -> list[Finding]:
            found = tree.findings(selected, include_unsupported)
            kept, _ = tree.now.unsuppressed(found, per_file_ignores or {})
            return [finding for finding in kept if not families or finding.family in families]

        findings = left = find()
        rounds = 0
        while (chosen := choose_repairs(left, unsafe, tree.frozen)) and rounds < _MAX_ROUNDS:
            tree.repair(chosen)
            left = find()
            rounds += 1
        tree.restore({repair.path for finding in chosen for repair in finding.repairs})
        tree.clean_up(copies_follow)
    findings = [finding for finding in findings if finding.code not in tree.bugs]
    problems += [*unreadable, *unparsed, *chain.from_iterable(tree.bugs.values())]
    wanted = {repair.path for finding in findings for repair in finding.repairs}
    problems += [Problem(path, READ_ONLY) for path in sorted(locked & wanted)]
    changes = tree.changes()
    for change in changes if write else ():
        failed = write_atomically(change.path, change.before, change.after, encoding=change.encoding, bom=change.bom)
        if failed:
            problems.append(failed)
            tree.unchanged.add(change.path)

    def stays(finding: Finding) -> bool:
        return not tree.unchanged.isdisjoint({finding.path, *(repair.path for repair in finding.repairs)})

    if tree.unchanged:
        left = sorted(
            [*(finding for finding in left if not stays(finding)), *filter(stays, findings)],
            key=lambda finding: finding.sort_key,
        )
    together = {tuple(sorted({repair.path for repair in finding.repairs})) for finding in tree.repaired}
    return ApplyResult(
        changes=tuple(change for change in changes if change.path not in tree.unchanged),
        findings=tuple(findings),
        left=tuple(left),
        problems=tuple(problems),
        notes=(*snapshot.notes, *tree.notes),
        together=tuple(sorted(paths for paths in together if len(paths) > 1)),
        repaired=tuple(finding for finding in tree.repaired if not stays(finding)),
        files=len(sources),
        written=write,
        unsafe=unsafe,
        seconds=perf_counter() - start,
    )


@dataclass(slots=True)
class _Tree:
    """A tree before its repair and as it is now, with the changes so far."""

    parser: FileParser
    before: Snapshot
    now: Snapshot
    frozen: set[str]
    """Files that are left alone: read-only ones, and those whose repair does not parse."""
    named: Collection[str]
    """The codes of the rules that were selected by name."""
    unchanged: set[str] = field(default_factory=set)
    """Files that stay as they were after all: they never settle, or could not be written."""
    made: dict[str, list[tuple[SourceRepair, ...]]] = field(default_factory=lambda: defaultdict(list))
    """The repairs of each file, round by round."""
    repaired: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    bugs: dict[str, list[Problem]] = field(default_factory=lambda: defaultdict(list))
    """Failures of this package itself, by the code of the rule; those of repairs are under ""."""

    def findings(self, selected: Collection[str], include_unsupported: bool) -> list[Finding]:
        """Return what the rules find now. A rule that fails counts as not selected.

        The others then run once more: their repairs may rely on one of that rule.
        """
        findings, bugs = self.now.findings_and_bugs({*selected} - {*self.bugs}, include_unsupported, self.named)
        self.bugs.update(bugs)
        return self.findings(selected, include_unsupported) if bugs else findings

    def repair(self, chosen: Sequence[Finding]) -> None:
        """Make the repairs of one round in memory.

        If one cannot be made, or its result does not parse, its file is frozen and none of them is kept.
        """
        repairs: dict[str, dict[SourceRepair, None]] = defaultdict(dict)
        for finding in chosen:
            for repair in finding.repairs:
                repairs[repair.path][repair] = None
        results = self.parser.rewrite(self.now.files, repairs)
        if broken := {path: result for path, result in results.items() if not isinstance(result, ParsedFile)}:
            self.frozen.update(broken)
            self.bugs[""] += [result for result in broken.values() if result]
            self.notes += [
                Note(path, "left alone: its repair would not parse; please report it")
                for path, result in broken.items()
                if result is None
            ]
            return
        self.repaired += chosen
        self._keep(results, repairs)

    def restore(self, paths: set[str]) -> None:
        """Undo the repairs of files that each round changes again."""
        self.unchanged |= paths
        for path in sorted(paths):
            self.now.files[path] = self.before.files[path]
            self.notes.append(Note(path, "left alone: a second run would change it again; please report it"))

    def clean_up(self, copies_follow: bool) -> None:
        """Remove what the rounds leave behind: unused imports, and comments on copies that are not copies any more."""
        repairs: dict[str, list[SourceRepair]] = defaultdict(list)
        width = self.now.width
        for change in self.changes():
            facts = self.now.files[change.path].facts
            try:
                if unused := unused_imports(change.path, facts, change.before, change.after, width):
                    repairs[change.path].append(unused)
            except Exception as error:
                self.bugs[""].append(Problem.bug(change.path, "looking for unused imports", error))
        try:
            for repair, note in diverged_copies(self.before, self.now, follow=copies_follow):
                self.notes.append(note)
                repairs[repair.path].append(repair)
        except Exception as error:
            self.bugs[""].append(Problem.bug("# Copied from", "checking such comments", error))
        self._keep(self.parser.rewrite(self.now.files, repairs), repairs)

    def changes(self) -> list[FileChange]:
        codes: dict[str, set[str]] = defaultdict(set)
        for finding in self.repaired:
            for repair in finding.repairs:
                codes[repair.path].add(finding.code)
        changes = []
        for path, file in self.now.files.items():
            old, new = self.before.files[path].source, file.source
            if new.text != old.text:
                by, repairs = tuple(sorted(codes[path])), tuple(self.made[path])
                changes.append(FileChange(path, old.text, new.text, by, repairs, old.encoding, old.bom))
        return changes

    def _keep(
        self, results: Mapping[str, ParsedFile | Problem | None], repairs: Mapping[str, Collection[SourceRepair]]
    ) -> None:
        """Keep the files as they are after their repairs; one that then does not parse stays as it was."""
        for path, result in results.items():
            if isinstance(result, ParsedFile):
                self.now.files[path] = result
                self.made[path].append(tuple(repairs[path]))
            elif result:
                self.bugs[""].append(result)
