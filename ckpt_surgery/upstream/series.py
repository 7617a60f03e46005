"""One series: its commits, made one after another in a worktree of ours, and all that was seen on the way.

Decides which families stay; what is run and how is the business of `checks`, `reproduce` and `regression`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckpt_surgery import __version__
from ckpt_surgery.source.results import Progress
from ckpt_surgery.upstream.checks import Tools, fix
from ckpt_surgery.upstream.git import TRAILER, Base, Git, changed_files, commit, restore
from ckpt_surgery.upstream.interpreter import Interpreter
from ckpt_surgery.upstream.layout import is_model_file
from ckpt_surgery.upstream.plan import Plan, Unit
from ckpt_surgery.upstream.regression import regression
from ckpt_surgery.upstream.reproduce import reproduced, rows_of, verify_tree
from ckpt_surgery.upstream.results import Commit, Ran, Regression, Row
from ckpt_surgery.verification.results import MODES, Mode, Report
from ckpt_surgery.verification.units import listed
from codemods import RULES
from codemods.finding import Applicability
from model_patches import family_of

_IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
_NO_FAULT = "verify finds no fault in it as it is, so nothing shows that the repair is needed"
_NO_CHANGE = "verify finds the same faults after the repair as before"


@dataclass(slots=True)
class Workshop:
    """Two worktrees of one checkout, and what works on them."""

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
    include_unreproduced: bool = False
    jobs: int | None = None
    progress: Progress | None = None
    _before: dict[str, tuple[Report, ...]] = field(default_factory=dict)

    def before(self, families: Collection[str]) -> Mapping[str, tuple[Report, ...]]:
        """What `verify` says of these families on the base; each is run once."""
        missing = sorted(set(families) - set(self._before))
        if missing:
            self._before |= self._verified(self.untouched.folder, missing)
        return self._before

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
    unreproduced: list[str] = field(default_factory=list)
    """Families that are in the series although no fault of theirs was shown."""

    @property
    def families(self) -> frozenset[str]:
        return frozenset(family for made in self.commits for family in made.families)


def draft(shop: Workshop, units: Sequence[Unit], step: Callable[[str], None]) -> Draft:
    """Make the commits of these units on the base, in the worktree of the series."""
    shop.tree.run("checkout", "--quiet", "--detach", "--force", shop.base.sha)
    restore(shop.tree)
    made = Draft()
    for unit in units:
        _add(shop, made, unit, step)
    if len(units) > 1 and made.commits:
        # what one commit repairs, a later one may touch: the claim is about the whole series
        step("verify the whole series")
        made.rows = shop.rows(made.families)
    made.left_out = {family: why for family, why in made.left_out.items() if family not in made.families}
    return made


def _add(shop: Workshop, made: Draft, unit: Unit, step: Callable[[str], None]) -> None:
    name = ", ".join(unit.families)
    step(f"{name}: verify")
    before = shop.before(unit.families)
    faulty = any(report.faults for family in unit.families for report in before[family])
    if not faulty and not shop.include_unreproduced:
        made.left_out |= dict.fromkeys(unit.families, _NO_FAULT)
        return
    step(f"{name}: repair")
    fixes = _write(shop, unit)
    files = _kept(shop, unit)
    families = frozenset(family_of(file) for file in files if is_model_file(file)) | set(unit.families)
    step(f"{name}: verify after the repair")
    rows = shop.rows(families)
    if not reproduced(rows):
        if not shop.include_unreproduced:
            restore(shop.tree)
            why = "".join(f"; {ran.command} failed with exit code {ran.code}" for ran in fixes if not ran.ok)
            made.left_out |= dict.fromkeys(unit.families, (_NO_CHANGE if faulty else _NO_FAULT) + why)
            return
        made.unreproduced += unit.families
    step(f"{name}: regression test")
    tests = [_regression(shop, unit, family, rows) for family in unit.families if _has_findings(unit, family)]
    made.regressions += tests
    files = _kept(shop, unit)
    made.rows = rows
    if not files:
        return  # an earlier commit brought it along, as a copy
    imported = _imported(shop, files)
    risky = (finding for finding in unit.findings if finding.applicability is Applicability.UNSAFE)
    made.unsafe += dict.fromkeys(f"{f.code} in {f.path}: {f.message}" for f in risky)
    ours = {change.path for change in unit.changes} | {path for test in tests for path in test.paths}
    regenerated = [file for file in files if shop.tools.has_converter and file in shop.plan.generated]
    brought = [file for file in files if file not in ours and file not in regenerated]
    message = _message(unit, regenerated, brought, tests)
    sha = commit(shop.tree, shop.base, files, message)
    restore(shop.tree)
    made.commits.append(
        Commit(
            sha=sha,
            subject=message.partition("\n")[0],
            families=tuple(sorted(families)),
            rules=unit.rules,
            files=tuple(files),
            imported=imported,
            regenerated=tuple(regenerated),
            checkers=tuple(brought),
            fixes=fixes,
        )
    )


def _write(shop: Workshop, unit: Unit) -> tuple[Ran, ...]:
    """The codemods' changes, then upstream's converter and fixers: what a modular file makes is theirs alone."""
    for change in unit.changes:
        if not (shop.tools.has_converter and change.path in shop.plan.generated):
            (shop.tree.folder / change.path).write_text(change.after, encoding="utf-8", newline="")
    return fix(shop.tools, shop.python, shop.tree.folder)


def _kept(shop: Workshop, unit: Unit) -> list[str]:
    """The files that the commit takes; what the fixers would change without us is put back."""
    ours = {change.path for change in unit.changes}
    files = changed_files(shop.tree)
    foreign = [file for file in files if file in shop.drift and file not in ours]
    if foreign:
        restore(shop.tree, foreign)
    return [file for file in files if file not in foreign]


def _has_findings(unit: Unit, family: str) -> bool:
    return any(finding.family == family for finding in unit.findings)


def _regression(shop: Workshop, unit: Unit, family: str, rows: Sequence[Row]) -> Regression:
    seen = [row for row in rows if row.family == family and not row.problem]
    modes: list[Mode] = [mode for mode in MODES if not any(row.after for row in seen if row.mode == mode)]
    blocks = unit.plain_blocks(family)
    return regression(family, shop.untouched.folder, shop.tree.folder, shop.python, blocks=blocks, modes=modes)


def _imported(shop: Workshop, files: Sequence[str]) -> Ran:
    """The import of every changed module, each commit by itself."""
    paths = [Path(file).relative_to("src").with_suffix("") for file in files if is_model_file(file)]
    names = [".".join(path.parts) for path in paths if not path.name.startswith("modular_")]
    shown = f'python -c "import {", ".join(names)}"'
    return shop.python.run(["-c", _IMPORT, *names], shop.tree.folder, shown=shown)


def _message(unit: Unit, regenerated: Sequence[str], brought: Sequence[str], tests: Sequence[Regression]) -> str:
    """The message of a commit: facts only. The last line discloses the program and tells the commit as ours."""
    lines = [f"Repair gradient checkpointing of {listed(unit.families)}"]
    names = {rule.code: rule.name for rule in RULES}
    for code in unit.rules:
        places = sorted({f"- {f.class_name}, {f.path}" for f in unit.findings if f.code == code})
        lines += ["", f"{code} ({names[code]}):", *places]
    for title, files in (
        ("Regenerated by the converter of this repository:", regenerated),
        ("Brought along by the other scripts of this repository:", brought),
    ):
        lines += ["", title, *(f"- {file}" for file in files)] if files else []
    for test in tests:
        if test.kind in ("added", "exception removed"):
            lines += ["", f"Test {test.kind} in {listed(test.paths)}."]
    return "\n".join([*lines, "", f"{TRAILER} {__version__}", ""])
