"""Build one series: make its commits one after another in one of our worktrees, and decide which families stay in.

`checkers`, `reproduce` and `regression` run upstream's scripts, `verify` and the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_surgery.codemods import rule_of
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.measure.results import MODES
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.discover import SourceFile, read_source
from ckpt_surgery.static.write import write_atomically
from ckpt_surgery.text import listed
from ckpt_surgery.upstream.evidence.results import CommandRun, Commit, ModelRow, RegressionKind, RegressionTest
from ckpt_surgery.upstream.evidence.signatures import changed_signatures
from ckpt_surgery.upstream.layout import is_model_file
from ckpt_surgery.upstream.plan.plan import PlannedCommit
from ckpt_surgery.upstream.run.checkers import DOCSTRINGS
from ckpt_surgery.upstream.run.regression import regression
from ckpt_surgery.upstream.run.workspace import Workspace
from ckpt_surgery.version import __version__

# why a family is in no series
NO_FAULT = "verify finds no fault in it as it is, so nothing shows that the repair is needed"
NO_EFFECT = "verify finds the same faults after the repair as before"
REVERTED = "upstream's own scripts revert all of its repair"
NO_REPAIR = "none of the chosen rules can repair it: a person has to"
TRAILER = "Assisted-by: ckpt_surgery"
"""The start of the last line of every commit, which discloses the program."""


@dataclass(slots=True)
class SeriesBuild:
    """The commits of a series so far, with their tests and measurements."""

    space: Workspace
    commits: list[Commit] = field(default_factory=list)
    regressions: list[RegressionTest] = field(default_factory=list)
    rows: tuple[ModelRow, ...] = ()
    """The classes of the last commit's families, and of all once the series is finished."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Families that are not changed, and why."""
    unsafe: list[str] = field(default_factory=list)
    """The repairs that may break code elsewhere, one sentence each."""
    repaired: set[str] = field(default_factory=set)
    """Families in which a fault was gone after their commit."""
    drifted: set[str] = field(default_factory=set)
    """Files of the series that upstream's fixers change on the base already."""
    unreproduced: list[str] = field(default_factory=list)
    """Families that are in the series although `verify` showed no fault."""

    @property
    def families(self) -> frozenset[str]:
        return frozenset(family for made in self.commits for family in made.families)

    @property
    def lost(self) -> list[str]:
        """Return the families that were repaired at their commit, but not on the finished series."""
        return sorted(self.families & self.repaired - {row.family for row in self.rows if row.better})

    def add(self, planned: PlannedCommit) -> None:
        """Repair the families of a commit, and commit that with its tests if `verify` shows a repair."""
        space, name = self.space, ", ".join(planned.families)
        tree = space.series_tree
        if not any(map(space.is_faulty, planned.families)) and not space.options.include_unreproduced:
            self.left_out |= dict.fromkeys(planned.families, NO_FAULT)
            return
        space.step(f"{name}: repair")
        fixes = self._write(planned)
        # restore what the fixers change on the base too
        foreign = [file for file in tree.changed_files() if file in space.drift and file not in planned.paths]
        if foreign:
            tree.restore(foreign)
        own = tree.changed_files()
        families = {*map(family_of, filter(is_model_file, own)), *planned.families}
        existing = (Path(file) for file in own if is_model_file(file) and (tree.folder / file).is_file())
        paths = [path.relative_to("src").with_suffix("") for path in existing if not path.name.startswith("modular_")]
        space.step(f"{name}: verify after the repair")
        rows, imported = space.rows(families, [".".join(path.parts) for path in paths])
        better = {row.family for row in rows if row.better}
        unreproduced = [family for family in planned.families if family not in better]
        if better.isdisjoint(planned.families) and not space.options.include_unreproduced:
            tree.restore()
            failed = [f"{ran.command} failed with exit code {ran.code}" for ran in fixes if not ran.ok]
            self.left_out |= dict.fromkeys(planned.families, "; ".join([NO_EFFECT, *failed]))
            return
        self.unreproduced += unreproduced
        self.drifted |= space.drift & planned.paths
        self.repaired |= better & set(planned.families)
        space.step(f"{name}: regression test")
        if own:
            tree.run("add", "--all", "--", *own)
        tests = self._regression_tests(planned, rows)
        self.regressions += tests
        test_paths = [path for test in tests for path in test.paths]
        if test_paths:
            tree.run("add", "--", *test_paths)
        tree.run("checkout", "--quiet", "--", ".")  # upstream's tests may leave files behind
        tree.run("clean", "-d", "--force", "--quiet")
        space.base_tree.restore()
        files = tree.changed_files()
        if not files:  # an earlier commit made these changes in a copy, or upstream's scripts reverted them all
            self.left_out |= dict.fromkeys(planned.families, REVERTED)
            return
        regenerated = [file for file in files if space.tools.has_converter and file in space.plan.generated]
        by_checkers = [file for file in files if file not in {*planned.paths, *test_paths, *regenerated}]
        source = any(map(is_model_file, files))
        message = message_of(planned, source=source, regenerated=regenerated, by_checkers=by_checkers, tests=tests)
        sha = tree.commit(space.base, message)
        tree.restore()
        self.unsafe += planned.breaking
        self.rows = rows
        self.commits.append(
            Commit(
                sha=sha,
                subject=message.partition("\n")[0],
                families=tuple(sorted(families)),
                rules=planned.rules if source else (),
                files=tuple(files),
                imported=imported,
                regenerated=tuple(regenerated),
                checkers=tuple(by_checkers),
                fixes=fixes,
            )
        )

    def _write(self, planned: PlannedCommit) -> tuple[CommandRun, ...]:
        """Write the codemods' changes except to generated files, then run upstream's converter and fixers.

        Raises UpstreamError if a file cannot be written in its own encoding.
        """
        space = self.space
        base, series = space.base_tree.folder, space.series_tree.folder
        for change in planned.changes:
            path = series / change.path
            if space.tools.has_converter and change.path in space.plan.generated:
                continue
            if path.is_symlink():
                raise UpstreamError(
                    f"{path.name} is a symbolic link in the checkout: what it points to is not changed"
                )
            source = read_source(path)
            if not isinstance(source, SourceFile):
                raise UpstreamError(str(source))
            problem = write_atomically(path, source.text, change.after, encoding=source.encoding, bom=source.bom)
            if problem:
                raise UpstreamError(str(problem))
        unchanged = not any(any(changed_signatures(base, series, path)) for path in planned.paths)
        # a docstring has to follow its signature; other faults of docstrings in the file are not ours to fix
        return space.tools.fix(series, leave_out=(DOCSTRINGS,) if unchanged else ())

    def _regression_tests(self, planned: PlannedCommit, rows: Sequence[ModelRow]) -> list[RegressionTest]:
        """Find or make the regression test of each family of a commit that has findings of its own."""
        with_findings = {finding.family for finding in planned.findings}
        tests = []
        for family in (family for family in planned.families if family in with_findings):
            measured = [row for row in rows if row.family == family and not row.problem]
            tests.append(
                regression(
                    family,
                    self.space.base_tree.folder,
                    self.space.series_tree.folder,
                    self.space.tools.python,
                    blocks=planned.plain_blocks(family),
                    modes=[mode for mode in MODES if all(row.gradients_equal for row in measured if row.mode == mode)],
                )
            )
        return tests


def build_series(space: Workspace, planned: Sequence[PlannedCommit]) -> SeriesBuild:
    """Make these commits on the base, in the worktree of the series, and return the result."""
    space.series_tree.run("checkout", "--quiet", "--detach", "--force", space.base.sha)
    space.series_tree.restore()
    build = SeriesBuild(space)
    for entry in planned:
        build.add(entry)
    if len(build.commits) > 1:
        # a later commit may change what an earlier one repairs, and the claim is about the whole series
        space.step("verify the whole series")
        earlier, _ = space.rows(build.families - set(build.commits[-1].families))
        build.rows = tuple(sorted((*earlier, *build.rows), key=lambda row: row.family))
    build.left_out = {family: why for family, why in build.left_out.items() if family not in build.families}
    return build


def message_of(
    planned: PlannedCommit,
    *,
    source: bool,
    regenerated: Sequence[str],
    by_checkers: Sequence[str],
    tests: Sequence[RegressionTest],
) -> str:
    """Return the message of a planned commit: what changed, by which rule, and that a program made it.

    Args:
        source: whether the commit changes models; if not, an earlier one has made these changes.
        regenerated: files that upstream's converter wrote.
        by_checkers: files that only upstream's other scripts changed.
        tests: the regression tests of its families.
    """
    lines = [f"{'Repair' if source else 'Test'} gradient checkpointing of {listed(planned.families)}"]
    if source and planned.findings:
        # each rule words its commits, with a place for the class of the finding
        wording = {finding: rule_of(finding.code).commit for finding in planned.findings}
        lines += ["", *sorted({f"- {text.format(f.class_name)} ({f.code})" for f, text in wording.items() if text})]
    for title, files in (
        ("Regenerated by the converter of this repository:", regenerated),
        ("Updated by the other scripts of this repository:", by_checkers),
    ):
        lines += ["", title, *(f"- {file}" for file in files)] if files else []
    for test in tests:
        if test.kind is RegressionKind.EXCEPTION_REMOVED:
            lines += ["", f"Existing tests cover {test.family} now: the exception that kept it out is removed."]
        elif test.kind is RegressionKind.ADDED:
            lines += ["", f"New test: {listed(test.tests)}"]
    return "\n".join([*lines, "", f"{TRAILER} {__version__}", ""])
