"""One series: its commits, made one after another in a worktree of ours, and all that was seen on the way.

Decides which families stay; what is run and how is the business of `checks`, `reproduce` and `regression`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_surgery.codemods import rule_of
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.model_patches import family_of
from ckpt_surgery.static.discover import SourceFile, read_source
from ckpt_surgery.static.results import Problem, Progress
from ckpt_surgery.static.write import write_atomically
from ckpt_surgery.upstream.evidence.results import Commit, Ran, Regression, Row
from ckpt_surgery.upstream.plan.layout import is_model_file
from ckpt_surgery.upstream.plan.message import message_of
from ckpt_surgery.upstream.plan.plan import Plan, Unit
from ckpt_surgery.upstream.run.checks import Tools, fix
from ckpt_surgery.upstream.run.git import Base, Git, changed_files, commit, restore, stage, unstage_rest
from ckpt_surgery.upstream.run.interpreter import Interpreter
from ckpt_surgery.upstream.run.regression import regression
from ckpt_surgery.upstream.run.reproduce import reproduced, rows_of, verify_tree

NO_FAULT = "verify finds no fault in it as it is, so nothing shows that the repair is needed"
_NO_CHANGE = "verify finds the same faults after the repair as before"
_IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


@dataclass(slots=True)
class Workshop:
    """Two worktrees of one checkout, what works on them, and who is told of it."""

    base: Base
    untouched: Git
    """The worktree that stays at the base."""
    tree: Git
    """The worktree that the series is made in."""
    python: Interpreter
    tools: Tools
    plan: Plan
    drift: frozenset[str]
    """Files that upstream's fixers change on the base already: not ours to change."""
    include_unreproduced: bool
    jobs: int | None
    progress: Progress | None
    step: Callable[[str], None]
    """Told in a few words what is done now."""
    _before: dict[str, tuple[Report, ...]] = field(default_factory=dict)

    def before(self, families: Collection[str]) -> Mapping[str, tuple[Report, ...]]:
        """What `verify` says of these families on the base; each is run once."""
        missing = sorted(set(families) - set(self._before))
        if missing:
            self._before |= self._verified(self.untouched.folder, missing)
        return self._before

    def faulty(self, family: str) -> bool:
        """Whether `verify` finds a fault in a family on the base."""
        return any(report.faults for report in self.before([family])[family])

    def rows(self, families: Collection[str]) -> tuple[Row, ...]:
        """The classes of these families on the base and on the series as it is now."""
        before, after = self.before(families), self._verified(self.tree.folder, sorted(families))
        return tuple(row for family in sorted(families) for row in rows_of(family, before[family], after[family]))

    def _verified(self, tree: Path, families: Sequence[str]) -> dict[str, tuple[Report, ...]]:
        return verify_tree(self.python, tree, families, jobs=self.jobs, progress=self.progress)


@dataclass(slots=True)
class Draft:
    """The commits of a series so far, and what belongs to them."""

    commits: list[Commit] = field(default_factory=list)
    regressions: list[Regression] = field(default_factory=list)
    rows: tuple[Row, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    """Families that stay as they are, and why."""
    unsafe: list[str] = field(default_factory=list)
    """The repairs that may break code elsewhere, a sentence each."""
    shown: set[str] = field(default_factory=set)
    """Families in which a fault was shown to go away."""
    drifted: list[str] = field(default_factory=list)
    """Files that upstream's fixers change on the base already, and on the series too."""
    unreproduced: list[str] = field(default_factory=list)
    """Families that are in the series although no fault of theirs was shown."""

    @property
    def families(self) -> frozenset[str]:
        return frozenset(family for made in self.commits for family in made.families)

    @property
    def lost(self) -> list[str]:
        """Families whose repair showed at their commit and does not show any more on the finished series."""
        return sorted(self.families & self.shown - {row.family for row in self.rows if row.better})


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A unit's repair in the worktree, not yet committed."""

    files: list[str]
    families: frozenset[str]
    """Those of the unit, and those that upstream's scripts brought along."""
    fixes: tuple[Ran, ...]
    rows: tuple[Row, ...]


def draft(shop: Workshop, units: Sequence[Unit]) -> Draft:
    """Make the commits of these units on the base, in the worktree of the series."""
    shop.tree.run("checkout", "--quiet", "--detach", "--force", shop.base.sha)
    restore(shop.tree)
    made = Draft()
    for unit in units:
        attempt = _attempt(shop, made, unit)
        if attempt:
            made.rows = attempt.rows
            _commit(shop, made, unit, attempt)
    if len(units) > 1 and made.commits:
        # what one commit repairs, a later one may touch: the claim is about the whole series
        shop.step("verify the whole series")
        made.rows = shop.rows(made.families)
    made.left_out = {family: why for family, why in made.left_out.items() if family not in made.families}
    return made


def _attempt(shop: Workshop, made: Draft, unit: Unit) -> _Attempt | None:
    """Repair a unit, and see whether that shows; where it does not, the worktree is as before."""
    name = ", ".join(unit.families)
    faulty = any(map(shop.faulty, unit.families))
    if not faulty and not shop.include_unreproduced:
        made.left_out |= dict.fromkeys(unit.families, NO_FAULT)
        return None
    shop.step(f"{name}: repair")
    fixes = _write(shop, unit)
    files, drifted = _kept(shop, unit)
    families = frozenset(map(family_of, filter(is_model_file, files))) | set(unit.families)
    shop.step(f"{name}: verify after the repair")
    rows = shop.rows(families)
    unshown = [family for family in unit.families if not reproduced([row for row in rows if row.family == family])]
    if len(unshown) == len(unit.families) and not shop.include_unreproduced:
        restore(shop.tree)
        why = "".join(f"; {ran.command} failed with exit code {ran.code}" for ran in fixes if not ran.ok)
        made.left_out |= dict.fromkeys(unit.families, f"{_NO_CHANGE}{why}")
        return None
    made.unreproduced += unshown
    made.drifted += drifted
    made.shown |= set(unit.families) - set(unshown)
    return _Attempt(files, families, fixes, rows)


def _commit(shop: Workshop, made: Draft, unit: Unit, attempt: _Attempt) -> None:
    """Add the regression tests to an attempt and commit both."""
    shop.step(f"{', '.join(unit.families)}: regression test")
    stage(shop.tree, attempt.files)
    found = [family for family in unit.families if any(finding.family == family for finding in unit.findings)]
    tests = [_regression(shop, unit, family, attempt.rows) for family in found]
    made.regressions += tests
    stage(shop.tree, [path for test in tests for path in test.paths])
    unstage_rest(shop.tree)  # upstream's tests may leave what they like
    restore(shop.untouched)
    files = changed_files(shop.tree)
    if not files:  # an earlier commit brought it along, as a copy; or else nothing is left of it
        made.left_out |= dict.fromkeys(unit.families, "upstream's own scripts take all of its repair back")
        return
    ours = {*unit.paths, *(path for test in tests for path in test.paths)}
    regenerated = [file for file in files if shop.tools.has_converter and file in shop.plan.generated]
    brought = [file for file in files if file not in ours and file not in regenerated]
    source = any(map(is_model_file, files))
    message = message_of(unit, source=source, regenerated=regenerated, brought=brought, tests=tests)
    imported = _imported(shop, files)
    sha = commit(shop.tree, shop.base, message)
    restore(shop.tree)
    made.unsafe += _breaking(unit)
    made.commits.append(
        Commit(
            sha=sha,
            subject=message.partition("\n")[0],
            families=tuple(sorted(attempt.families)),
            rules=unit.rules if source else (),
            files=tuple(files),
            imported=imported,
            regenerated=tuple(regenerated),
            checkers=tuple(brought),
            fixes=attempt.fixes,
        )
    )


def _write(shop: Workshop, unit: Unit) -> tuple[Ran, ...]:
    """The codemods' changes, then upstream's converter and fixers: what a modular file makes is theirs alone."""
    for change in unit.changes:
        if not (shop.tools.has_converter and change.path in shop.plan.generated):
            _replace(shop.tree.folder / change.path, change.after)
    return fix(shop.tools, shop.python, shop.tree.folder)


def _replace(path: Path, text: str) -> None:
    """Write a file in the encoding that it has. Raises UpstreamError where it is none that can be written."""
    if path.is_symlink():
        raise UpstreamError(f"{path.name} is a symbolic link in the checkout: what it leads to is not to be changed")
    source = read_source(path)
    problem: Problem | None
    if isinstance(source, SourceFile):
        problem = write_atomically(path, source.text, text, encoding=source.encoding, bom=source.bom)
    else:
        problem = source
    if problem:
        raise UpstreamError(str(problem))


def _kept(shop: Workshop, unit: Unit) -> tuple[list[str], list[str]]:
    """The files that the commit takes, and those of which not all that upstream's fixers do is ours.

    The fixers change the latter on the base already; what they would change without us is put back.
    """
    files = changed_files(shop.tree)
    foreign = [file for file in files if file in shop.drift and file not in unit.paths]
    if foreign:
        restore(shop.tree, foreign)
    return [file for file in files if file not in foreign], sorted(shop.drift & {*unit.paths, *files})


def _regression(shop: Workshop, unit: Unit, family: str, rows: Sequence[Row]) -> Regression:
    seen = [row for row in rows if row.family == family and not row.problem]
    modes: list[Mode] = [mode for mode in MODES if not any(row.after for row in seen if row.mode == mode)]
    blocks = unit.plain_blocks(family)
    return regression(family, shop.untouched.folder, shop.tree.folder, shop.python, blocks=blocks, modes=modes)


def _breaking(unit: Unit) -> list[str]:
    """The unsafe repairs of a unit. A new base class is none where the signature that it waits for changes too."""
    settled = {code for rule in unit.rules for code in rule_of(rule).settles}
    unsafe = (f for f in unit.findings if f.applicability is Applicability.UNSAFE and f.code not in settled)
    return list(dict.fromkeys(f"{finding.code} in {finding.path}: {finding.message}" for finding in unsafe))


def _imported(shop: Workshop, files: Sequence[str]) -> Ran | None:
    """The import of every changed module, each commit by itself; None where no module changed."""
    there = (file for file in files if is_model_file(file) and (shop.tree.folder / file).is_file())
    paths = [Path(file).relative_to("src").with_suffix("") for file in there]
    names = [".".join(path.parts) for path in paths if not path.name.startswith("modular_")]
    if not names:
        return None
    shown = f'python -c "import {", ".join(names)}"'
    return shop.python.run(["-c", _IMPORT, *names], shop.tree.folder, shown=shown)
