"""The evidence for one pull request, as plain frozen data; `body` and `page` render it.

Paths are relative to the top of the checkout, with forward slashes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ckpt_surgery.measure.results import LEVELS, Mode

EVIDENCE_VERSION = 1
"""Increased when a key of `evidence.json` changes its meaning or is removed, not when one is added."""

_GRADIENT_LEVELS = frozenset[str]({"run", "recompute", "set", "values", "ranks"})
"""A repair that causes a fault at one of these levels is worse than none, whatever else it repairs."""


class CheckStatus(StrEnum):
    """The outcome of one of upstream's checkers on the finished series, worst first."""

    FAILED = "failed"
    FAILED_DIFFERENTLY = "failed otherwise before"
    """It fails on the base too, with another output."""
    FAILED_BEFORE = "failed before too"
    """It fails on the base too, in the same way."""
    NOT_RUN = "not run"
    OK = "ok"


class RowVerdict(StrEnum):
    """The effect of the series on one model class in one mode."""

    REPAIRED = "repaired"
    PARTLY_REPAIRED = "partly repaired"
    AS_BEFORE = "as before"
    OK_BEFORE = "ok before"
    WORSE = "worse"
    NOT_MEASURED = "not measured"


class RegressionKind(StrEnum):
    """The origin of a regression test."""

    COVERED = "covered"
    """Upstream's own test, unchanged."""
    EXCEPTION_REMOVED = "exception removed"
    """Upstream's own test, once the override that kept it from running is gone."""
    ADDED = "added"
    IMPOSSIBLE = "impossible"
    """No test of all gradients can pass: `verify` still finds a fault in every mode."""
    NONE = "none"


class SeriesStatus(StrEnum):
    """Whether a series may be opened as a pull request."""

    READY = "ready"
    UNCHECKED = "unchecked"
    """Nothing failed, but something could not be run."""
    NOT_READY = "not ready"


@dataclass(frozen=True, slots=True)
class CommandRun:
    """One command that was run at the top of the checkout.

    `command` is what one would type there (`python utils/checkers.py copies`). `output` is the end of its standard
    output and error, without colours and without paths of the machine.
    """

    command: str
    code: int
    output: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class CheckerResult:
    """One of upstream's checkers, or its tests of one family, on the finished series.

    `ran` is the run on the series, `before` the one on the base, which is only made if the series fails. `reason` says
    why the checker was not run, or what its failure means.
    """

    name: str
    status: CheckStatus
    ran: CommandRun | None = None
    before: CommandRun | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model class in one mode, as `verify` saw it on the base and on the series.

    `before` and `after` are the levels that failed (`recompute`), `faults_before` and `faults_after` the sentences.
    `kept_before` and `kept_after` are the bytes that autograd kept from the forward to the backward, 0 if they were
    not measured. `problem` says why one of the two runs gave no verdict; the levels then mean nothing.

    `statistics_only` says that the only faults left on the series are running statistics of batch normalisation, which
    the recompute updates again, while all gradients are equal.
    """

    family: str
    model: str
    mode: Mode
    before: tuple[str, ...]
    after: tuple[str, ...]
    faults_before: tuple[str, ...] = ()
    faults_after: tuple[str, ...] = ()
    kept_before: int = 0
    kept_after: int = 0
    problem: str = ""
    statistics_only: bool = False

    @property
    def gradients_equal(self) -> bool:
        """Tell whether every block is recomputed on the series, with the gradients of a step without checkpointing."""
        return not self.after or self.statistics_only

    @property
    def failing(self) -> list[str]:
        """List the levels to report: the new ones if the series made the row worse, else all that fail."""
        levels = set(self.after) - set(self.before) if self.verdict is RowVerdict.WORSE else set(self.after)
        return [level for level in LEVELS if level in levels]

    @property
    def verdict(self) -> RowVerdict:
        """Say what the series changed. A repair with a new fault is partial if that does not concern gradients."""
        if self.problem:
            return RowVerdict.NOT_MEASURED
        gone = set(self.before) - set(self.after)
        new = set(self.after) - set(self.before)
        if new & _GRADIENT_LEVELS:
            return RowVerdict.WORSE
        if not self.before:
            return RowVerdict.WORSE if new else RowVerdict.OK_BEFORE
        if not gone:
            return RowVerdict.AS_BEFORE
        return RowVerdict.PARTLY_REPAIRED if self.after else RowVerdict.REPAIRED

    @property
    def better(self) -> bool:
        """Tell whether a fault is gone, and no new one concerns gradients."""
        return self.verdict in (RowVerdict.REPAIRED, RowVerdict.PARTLY_REPAIRED)


@dataclass(frozen=True, slots=True)
class SignatureChange:
    """A `forward` whose positional parameters changed, which breaks callers that pass them by position.

    `before` and `after` are the parameter lists as source text; `line` is its line in the finished series.
    """

    path: str
    line: int
    class_name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RegressionTest:
    """The test of one family that fails without the repair and passes with it, or the reason why there is none.

    `paths` are the test files that were changed for it (for a covered family, those that hold the tests). `tests` are
    the pytest ids that were run, `before` is their run on the base, which must fail, `after` the one on the series.
    `reason` names the override that was removed, or says why there is no test.
    """

    family: str
    kind: RegressionKind
    paths: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    before: CommandRun | None = None
    after: CommandRun | None = None
    reason: str = ""

    @property
    def exists(self) -> bool:
        return self.kind not in (RegressionKind.IMPOSSIBLE, RegressionKind.NONE)

    @property
    def tried(self) -> bool:
        """Tell whether a test was run, or none can pass, so that a missing one counts against the series."""
        return self.kind is RegressionKind.IMPOSSIBLE or bool(self.before or self.after)


@dataclass(frozen=True, slots=True)
class Sibling:
    """Findings of the same rules in one family, and whether this series repairs them."""

    family: str
    rules: tuple[str, ...]
    places: tuple[str, ...]
    included: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a series.

    `regenerated` are the files that upstream's converter wrote, `checkers` those that only its other scripts changed;
    both are among `files`. `imported` is the run that imported all model modules in `files`; None if there are none.
    `fixes` are the runs of upstream's converter and fixers that led to the commit.
    """

    sha: str
    subject: str
    families: tuple[str, ...]
    rules: tuple[str, ...]
    files: tuple[str, ...]
    imported: CommandRun | None
    regenerated: tuple[str, ...] = ()
    checkers: tuple[str, ...] = ()
    fixes: tuple[CommandRun, ...] = ()


class ReasonCode(StrEnum):
    """The code of a reason in `evidence.json`, which stays when its sentence is reworded."""

    PATCHES_DIFFER = "patches differ"
    REPAIR_LOST = "repair lost"
    NEW_FAULT = "new fault"
    """A model fails after the repair at a level that did not fail before."""
    FAULT_LEFT = "fault left"
    """A model fails after the repair as it did before, or at a level that was not reached before."""
    STATISTICS_DIFFER = "statistics differ"
    """Gradients are equal, and the recompute updates running statistics a second time."""
    NOT_REPRODUCED = "not reproduced"
    NOT_MEASURED = "not measured"
    IMPORT_FAILED = "import failed"
    FIXER_FAILED = "fixer failed"
    FIXERS_CHANGE_BASE = "fixers change base"
    CHECKER_FAILED = "checker failed"
    CHECKER_FAILED_DIFFERENTLY = "checker failed differently"
    CHECKER_FAILED_BEFORE = "checker failed before"
    CHECKER_NOT_RUN = "checker not run"
    NO_REGRESSION_TEST = "no regression test"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a series is not ready or unchecked, or a known limit: a stable code and a sentence."""

    code: ReasonCode
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence for one series, with its status and the reasons for it."""

    group: str
    branch: str
    base: str
    """The full hash of the commit that the series is based on."""
    base_name: str
    status: SeriesStatus
    reasons: tuple[Reason, ...]
    """Why it is not ready, what was not checked, and its known limits, most serious first."""
    commits: tuple[Commit, ...]
    rows: tuple[ModelRow, ...]
    checks: tuple[CheckerResult, ...]
    signatures: tuple[SignatureChange, ...]
    regressions: tuple[RegressionTest, ...]
    siblings: tuple[Sibling, ...]
    versions: Mapping[str, str]
    """By name: ckpt_surgery, git, python, ruff, torch, transformers (the checkout's own)."""
    command: str
    """The `ckpt_surgery pr` command that makes this series again."""
    patches: tuple[str, ...] = ()
    """File names, in the order in which `git am` applies them."""
    unsafe: tuple[str, ...] = ()
    """Repairs that may break code elsewhere, one sentence each, with the file."""
    notes: tuple[str, ...] = ()
    """Sentences from the codemods: a `# Copied from` comment that was removed, a file that was left alone."""
    coordination: str = ""
    """The address of the issue in which the work was agreed on; empty if none was given."""
    rules: Mapping[str, str] = field(default_factory=dict)
    """The first sentence of each rule in use, by code."""

    @property
    def families(self) -> tuple[str, ...]:
        """Return every family that a commit names, sorted."""
        return tuple(sorted({family for commit in self.commits for family in commit.families}))

    @property
    def files(self) -> tuple[str, ...]:
        """Return every file that the series changes, sorted."""
        return tuple(sorted({file for commit in self.commits for file in commit.files}))

    @property
    def models(self) -> tuple[str, ...]:
        """Return every model class that was run, sorted."""
        return tuple(sorted({row.model for row in self.rows}))

    @property
    def run_slow(self) -> str:
        """Return the comment by which a maintainer starts upstream's slow tests of the changed models."""
        return f"run-slow: {', '.join(self.families)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, as `evidence.schema.json` describes it."""
        derived = {
            "schema_version": EVIDENCE_VERSION,
            "families": self.families,
            "files": self.files,
            "models": self.models,
            "run_slow": self.run_slow,
        }
        data = {**dataclasses.asdict(self), **derived}
        data["rows"] = [
            {**data_row, "verdict": row.verdict} for data_row, row in zip(data["rows"], self.rows, strict=True)
        ]
        return data

    def to_json(self) -> str:
        """Return one JSON document."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def checkers(self, status: CheckStatus) -> dict[str, list[str]]:
        """Return the names of the checkers with this status, by the reason if they were not run."""
        names: dict[str, list[str]] = {}
        for check in self.checks:
            if check.status is status:
                names.setdefault(check.reason if status is CheckStatus.NOT_RUN else "", []).append(check.name)
        return names
