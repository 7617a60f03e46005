"""One series: its commits, made one after another in one of our worktrees, and what was seen on the way.

Decides which families stay in. What is run, and how, is decided by `checks`, `reproduce` and `regression`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_surgery.codemods import rule_of
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.discover import SourceFile, read_source
from ckpt_surgery.static.results import Problem
from ckpt_surgery.static.write import write_atomically
from ckpt_surgery.upstream.evidence.changed_forwards import changed_forwards
from ckpt_surgery.upstream.evidence.omissions import Omission, OmissionKind
from ckpt_surgery.upstream.evidence.results import CommandRun, Commit, ModelRow, RegressionTest
from ckpt_surgery.upstream.evidence.rows import reproduced
from ckpt_surgery.upstream.layout import is_model_file
from ckpt_surgery.upstream.plan.plan import PlannedCommit
from ckpt_surgery.upstream.run.checkers import DOCSTRINGS
from ckpt_surgery.upstream.run.checks import digest, fix
from ckpt_surgery.upstream.run.commit_message import message_of
from ckpt_surgery.upstream.run.git import changed_files, commit, discard_unstaged, restore, stage
from ckpt_surgery.upstream.run.regression import regression
from ckpt_surgery.upstream.run.workspace import Workspace


@dataclass(slots=True)
class SeriesBuild:
    """The commits of a series so far, and what belongs to them."""

    commits: list[Commit] = field(default_factory=list)
    regressions: list[RegressionTest] = field(default_factory=list)
    rows: tuple[ModelRow, ...] = ()
    """The classes of the last commit's families, and of all once the series is finished."""
    left_out: dict[str, Omission] = field(default_factory=dict)
    """Families that stay as they are, and why."""
    unsafe: list[str] = field(default_factory=list)
    """The repairs that may break code elsewhere, one sentence each."""
    repaired: set[str] = field(default_factory=set)
    """Families in which a fault was shown to be gone, at their commit."""
    drifted: set[str] = field(default_factory=set)
    """Files that upstream's fixers change on the base already, and on the series too."""
    unreproduced: list[str] = field(default_factory=list)
    """Families that are in the series although no fault of theirs was shown."""

    @property
    def families(self) -> frozenset[str]:
        return frozenset(family for made in self.commits for family in made.families)

    @property
    def lost(self) -> list[str]:
        """Families whose repair showed at their commit, and not on the finished series."""
        return sorted(self.families & self.repaired - {row.family for row in self.rows if row.better})


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A planned repair in the worktree, not yet committed."""

    files: list[str]
    families: frozenset[str]
    """Those of the planned commit, and those that upstream's scripts brought along."""
    fixes: tuple[CommandRun, ...]
    rows: tuple[ModelRow, ...]
    imported: CommandRun | None


def build_series(space: Workspace, planned: Sequence[PlannedCommit]) -> SeriesBuild:
    """Make these commits on the base, in the worktree of the series."""
    space.series_tree.run("checkout", "--quiet", "--detach", "--force", space.base.sha)
    restore(space.series_tree)
    build = SeriesBuild()
    for entry in planned:
        attempt = _attempt(space, build, entry)
        if attempt:
            _commit(space, build, entry, attempt)
    if len(build.commits) > 1:
        # A later commit may touch what an earlier one repairs, and the claim is about the whole series.
        space.step("verify the whole series")
        earlier = space.rows(build.families - set(build.commits[-1].families))
        build.rows = tuple(sorted((*earlier, *build.rows), key=lambda row: row.family))
    build.left_out = {family: why for family, why in build.left_out.items() if family not in build.families}
    return build


def _attempt(space: Workspace, build: SeriesBuild, planned: PlannedCommit) -> _Attempt | None:
    """Repair the families of a commit, and see whether that shows. If it does not, the worktree is as before."""
    name = ", ".join(planned.families)
    if not any(map(space.is_faulty, planned.families)) and not space.include_unreproduced:
        build.left_out |= dict.fromkeys(planned.families, Omission(OmissionKind.NO_FAULT))
        return None
    space.step(f"{name}: repair")
    fixes = _write(space, planned)
    files, drifted = _own_files(space, planned)
    families = frozenset(map(family_of, filter(is_model_file, files))) | set(planned.families)
    space.step(f"{name}: verify after the repair")
    rows, imported = space.rows_and_imports(families, _modules(space, files))
    unshown = [family for family in planned.families if not reproduced([row for row in rows if row.family == family])]
    if len(unshown) == len(planned.families) and not space.include_unreproduced:
        restore(space.series_tree)
        failed = tuple(ran for ran in fixes if not ran.ok)
        build.left_out |= dict.fromkeys(planned.families, Omission(OmissionKind.NO_EFFECT, failed))
        return None
    build.unreproduced += unshown
    build.drifted |= drifted
    build.repaired |= set(planned.families) - set(unshown)
    return _Attempt(files, families, fixes, rows, imported)


def _commit(space: Workspace, build: SeriesBuild, planned: PlannedCommit, attempt: _Attempt) -> None:
    """Add the regression tests to an attempt and commit both."""
    space.step(f"{', '.join(planned.families)}: regression test")
    stage(space.series_tree, attempt.files)
    with_findings = {finding.family for finding in planned.findings}
    families = [family for family in planned.families if family in with_findings]
    tests = [_regression(space, planned, family, attempt.rows) for family in families]
    build.regressions += tests
    stage(space.series_tree, [path for test in tests for path in test.paths])
    discard_unstaged(space.series_tree)  # upstream's tests may leave files behind
    restore(space.base_tree)
    files = changed_files(space.series_tree)
    if not files:  # an earlier commit brought it along as a copy, or nothing is left of it
        build.left_out |= dict.fromkeys(planned.families, Omission(OmissionKind.REVERTED))
        return
    ours = {*planned.paths, *(path for test in tests for path in test.paths)}
    regenerated = [file for file in files if space.tools.has_converter and file in space.plan.generated]
    brought = [file for file in files if file not in ours and file not in regenerated]
    source = any(map(is_model_file, files))
    message = message_of(planned, source=source, regenerated=regenerated, brought=brought, tests=tests)
    sha = commit(space.series_tree, space.base, message)
    restore(space.series_tree)
    build.unsafe += _breaking(planned)
    build.rows = attempt.rows
    build.commits.append(
        Commit(
            sha=sha,
            subject=message.partition("\n")[0],
            families=tuple(sorted(attempt.families)),
            rules=planned.rules if source else (),
            files=tuple(files),
            imported=attempt.imported,
            regenerated=tuple(regenerated),
            checkers=tuple(brought),
            fixes=attempt.fixes,
        )
    )


def _write(space: Workspace, planned: PlannedCommit) -> tuple[CommandRun, ...]:
    """Write the codemods' changes, then run upstream's converter, which alone writes generated files, and fixers."""
    for change in planned.changes:
        if not (space.tools.has_converter and change.path in space.plan.generated):
            _replace(space.series_tree.folder / change.path, change.after)
    base, series = space.base_tree.folder, space.series_tree.folder
    unchanged = not any(any(changed_forwards(base, series, path)) for path in planned.paths)
    # a docstring follows a signature; other faults of docstrings in the same file are not ours to mend
    return fix(space.tools, space.python, series, leave_out=(DOCSTRINGS,) if unchanged else ())


def _replace(path: Path, text: str) -> None:
    """Write a file in its own encoding. Raises UpstreamError if that cannot be done."""
    if path.is_symlink():
        raise UpstreamError(f"{path.name} is a symbolic link in the checkout, and what it points to is not changed")
    source = read_source(path)
    problem: Problem | None
    if isinstance(source, SourceFile):
        problem = write_atomically(path, source.text, text, encoding=source.encoding, bom=source.bom)
    else:
        problem = source
    if problem:
        raise UpstreamError(str(problem))


def _own_files(space: Workspace, planned: PlannedCommit) -> tuple[list[str], set[str]]:
    """The files that the commit takes, and those in which its changes cannot be told from those of upstream's fixers.

    What the fixers would change without us is put back. If they make the same of a file on the base, the repair has
    no part in it.
    """
    tree = space.series_tree
    files = changed_files(tree)
    foreign = [file for file in files if file in space.drift and file not in planned.paths]
    mixed = {file for file in foreign if digest(tree.folder / file) != space.drift[file]}
    if foreign:
        restore(tree, foreign)
    return [file for file in files if file not in foreign], mixed | (space.drift.keys() & planned.paths)


def _regression(space: Workspace, planned: PlannedCommit, family: str, rows: Sequence[ModelRow]) -> RegressionTest:
    measured = [row for row in rows if row.family == family and not row.problem]
    modes: list[Mode] = [mode for mode in MODES if all(row.gradients_equal for row in measured if row.mode == mode)]
    blocks = planned.plain_blocks(family)
    base, series = space.base_tree.folder, space.series_tree.folder
    workers = space.workers
    return regression(family, base, series, space.python, blocks=blocks, modes=modes, workers=workers)


def _breaking(planned: PlannedCommit) -> list[str]:
    """The unsafe repairs of a commit. A new base class is safe if the signature that it waits for changes too."""
    settled = {code for rule in planned.rules for code in rule_of(rule).settles}
    unsafe = (finding for finding in planned.findings if finding.applicability is Applicability.UNSAFE)
    sentences = (f"{f.code} in {f.path}: {f.message}" for f in unsafe if f.code not in settled)
    return list(dict.fromkeys(sentences))


def _modules(space: Workspace, files: Sequence[str]) -> list[str]:
    """The names of the modules among these files of the series."""
    existing = (file for file in files if is_model_file(file) and (space.series_tree.folder / file).is_file())
    paths = [Path(file).relative_to("src").with_suffix("") for file in existing]
    return [".".join(path.parts) for path in paths if not path.name.startswith("modular_")]
