"""The evidence for one pull request, as plain frozen data; `body` and `evidence_page` show it.

Nothing here runs, measures or renders. Paths are relative to the top of the checkout, with forward slashes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ckpt_surgery.measure.results import Mode

CheckStatus = Literal["ok", "failed", "failed before too", "failed otherwise before", "not run"]
RowVerdict = Literal["repaired", "partly repaired", "as before", "ok before", "worse", "not measured"]
RegressionKind = Literal["covered", "exception removed", "added", "none"]
SeriesStatus = Literal["ready", "unchecked", "not ready"]

EVIDENCE_VERSION = 1
"""Raised when a key of `evidence.json` changes its meaning or goes; new keys leave it as it is."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One command that was run at the top of the checkout.

    `command` is what one would type there (`python utils/checkers.py copies`); `output` the end of what it wrote to
    both streams, without colours and without any path of the machine.
    """

    command: str
    code: int
    output: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class Check:
    """One of upstream's checkers on the finished series. `reason` says why it was not run, or what a failure means.

    `ran` is the run on the series; `before` the one on the base, made only where the one on the series failed.
    """

    name: str
    status: CheckStatus
    ran: Ran | None = None
    before: Ran | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One model class in one mode, as `verify` saw it on the base and on the series.

    `before` and `after` are the levels that failed (`recompute`), `faults_before` and `faults_after` the sentences.
    `problem` is the reason where one of the two runs gave no verdict: the levels say nothing then. The numbers are
    the bytes that autograd kept from forward to backward, 0 where not measured.
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

    @property
    def verdict(self) -> RowVerdict:
        """What the series changed. New faults that are no gradient's leave a repair partial, not worse."""
        if self.problem:
            return "not measured"
        gone = set(self.before) - set(self.after)
        new = set(self.after) - set(self.before)
        if new & {"run", "recompute", "set", "values", "ranks"}:
            return "worse"
        if not self.before:
            return "worse" if new else "ok before"
        if not gone:
            return "as before"
        return "partly repaired" if self.after else "repaired"

    @property
    def better(self) -> bool:
        """Whether a fault of before is gone, and none came that is a gradient's."""
        return self.verdict in ("repaired", "partly repaired")


@dataclass(frozen=True, slots=True)
class Signature:
    """A `forward` whose positional parameters changed: a breaking change for who passes them by position.

    `before` and `after` are the parameter lists as source text, `callers` every call found in the checkout, as
    `path:line` of the finished series.
    """

    path: str
    line: int
    class_name: str
    before: str
    after: str
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Regression:
    """The test that fails without the repair and passes with it.

    "covered": upstream's own test, as it stands. "exception removed": upstream's own test, after the override that
    kept it from running went, which `reason` names. "added": a new test. "none": there is none, and `reason` says why.
    `paths` are the test files that were changed for it ("covered": the files of the tests), `tests` pytest ids of
    what was run, `before` is the run on the base (it must fail), `after` on the series.
    """

    family: str
    kind: RegressionKind
    paths: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    before: Ran | None = None
    after: Ran | None = None
    reason: str = ""


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
    """One commit. `regenerated` are files that upstream's converter wrote, `checkers` those that only its other
    scripts changed; both are among `files`. `imported` is the import of every model's module in `files`, None where
    there is none among them."""

    sha: str
    subject: str
    families: tuple[str, ...]
    rules: tuple[str, ...]
    files: tuple[str, ...]
    imported: Ran | None
    regenerated: tuple[str, ...] = ()
    checkers: tuple[str, ...] = ()
    fixes: tuple[Ran, ...] = ()
    """The runs of upstream's converter and fixers that led to it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known about one series. `reasons` say why it is not ready, or what was not checked."""

    group: str
    branch: str
    base: str
    """The commit that the series stands on, in full."""
    base_name: str
    status: SeriesStatus
    reasons: tuple[str, ...]
    commits: tuple[Commit, ...]
    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    signatures: tuple[Signature, ...]
    regressions: tuple[Regression, ...]
    siblings: tuple[Sibling, ...]
    versions: Mapping[str, str]
    """By name: ckpt_surgery, git, python, ruff, torch, transformers (the checkout's own)."""
    command: str
    """The `ckpt_surgery pr` command that makes the same series again."""
    patches: tuple[str, ...] = ()
    """File names, in the order in which `git am` takes them."""
    unsafe: tuple[str, ...] = ()
    """Repairs that may break code elsewhere, one sentence each, with the file."""
    notes: tuple[str, ...] = ()
    """Sentences of the codemods: a `# Copied from` comment that had to go, a file left alone."""
    coordination: str = ""
    """The address of the issue where the work was agreed on; empty where none was given."""
    rules: Mapping[str, str] = field(default_factory=dict)
    """The first sentence of each rule in use, by code."""

    @property
    def families(self) -> tuple[str, ...]:
        """Every family that a commit names, sorted."""
        return tuple(sorted({family for commit in self.commits for family in commit.families}))

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that the series changes, sorted."""
        return tuple(sorted({file for commit in self.commits for file in commit.files}))

    @property
    def models(self) -> tuple[str, ...]:
        """Every model class that was run, sorted."""
        return tuple(sorted({row.model for row in self.rows}))

    @property
    def run_slow(self) -> str:
        """The comment with which a maintainer has upstream's slow tests run on the touched models."""
        return f"run-slow: {', '.join(self.families)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as `evidence.schema.json` describes it."""
        derived = {
            "schema_version": EVIDENCE_VERSION,
            "families": self.families,
            "files": self.files,
            "models": self.models,
            "run_slow": self.run_slow,
        }
        data = {**dataclasses.asdict(self), **derived}
        data["rows"] = [{**row, "verdict": one.verdict} for row, one in zip(data["rows"], self.rows, strict=True)]
        return data

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
