"""evidence.md: the evidence for one series, written for its reviewer and for upstream's.

The page says what the data says and no more, without a time and without a random order. The output of commands that
passed is in evidence.json alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ckpt_surgery.text import bullets, code, folded, plural, prose
from ckpt_surgery.upstream.evidence.commands import console, folded_run, run_block, verify_commands
from ckpt_surgery.upstream.evidence.folding import bullet_list, code_list, folded_names
from ckpt_surgery.upstream.evidence.measurements import before_and_after, fault_list, levels_text
from ckpt_surgery.upstream.evidence.results import (
    CheckerResult,
    CheckStatus,
    Commit,
    Evidence,
    ModelRow,
    RegressionTest,
)
from ckpt_surgery.upstream.evidence.tables import (
    breaking_changes,
    checks_table,
    commits_table,
    failures_first,
    passed_count,
    regressions_table,
    slow_tests,
    status_lines,
)


def evidence_markdown(evidence: Evidence) -> str:
    """The page. It depends on the evidence alone, and not on the order of its mappings."""
    parts = [
        _heading(evidence),
        _section("Before and after", _before_and_after(evidence)),
        _section("Regression tests", _regressions(evidence.regressions)),
        breaking_changes(evidence, "## "),
        _section("Upstream's checkers and tests", _checks(evidence.checks)),
        _section("Faults before", fault_list((row, row.faults_before) for row in evidence.rows)),
        _section("Faults that remain", _remaining(evidence.rows)),
        _section("Commits", _commits(evidence)),
        _section("What upstream's converter and checkers changed", _tool_changes(evidence.commits)),
        _section("Notes", bullets(map(prose, evidence.notes))),
        slow_tests(evidence),
        _section("Reproduce the series and its measurements", _reproduction(evidence)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _heading(evidence: Evidence) -> str:
    about = [
        f"branch: {code(evidence.branch)}, {plural(len(evidence.commits), 'commit')}",
        f"base: {code(evidence.base_name)} at {code(evidence.base)}",
        f"agreed on in: {prose(evidence.coordination) if evidence.coordination else 'no issue was named'}",
    ]
    title = f"# Evidence for {code(evidence.group)}: {evidence.status}"
    return f"{title}\n\n{status_lines(evidence)}\n\nThe series:\n\n{bullets(about)}"


def _before_and_after(evidence: Evidence) -> str:
    models = folded_names(evidence.models, "model class", "model classes")
    return "\n\n".join(filter(None, [before_and_after(evidence.rows), models]))


def _regressions(regressions: Sequence[RegressionTest]) -> str:
    """The table, the failing runs in full, since they are the proof, and the last line of each passing run."""
    runs = [
        (f"{test.family} on the {tree}", ran)
        for test in regressions
        for tree, ran in (("base", test.before), ("series", test.after))
        if ran
    ]
    passed = [f"{title}: {code(ran.command)}: {_last_line(ran.output)}" for title, ran in runs if ran.ok]
    failed = [folded_run(title, ran) for title, ran in runs if not ran.ok]
    return "\n\n".join(filter(None, [regressions_table(regressions), *failed, bullet_list(passed, "run")]))


def _last_line(output: str) -> str:
    return prose(next(iter(output.rstrip().splitlines()[-1:]), "passed"))


def _checks(checks: Iterable[CheckerResult]) -> str:
    ordered = failures_first(checks)
    outputs = [part for check in ordered if check.status is not CheckStatus.OK for part in _outputs(check)]
    passed = code_list(check.name for check in ordered if check.status is CheckStatus.OK)
    passed_part = folded(f"{passed_count(ordered):,} passed", passed) if passed else ""
    return "\n\n".join(filter(None, [checks_table(ordered), *outputs, passed_part]))


def _outputs(check: CheckerResult) -> list[str]:
    """The runs of one checker, folded; a single one if both had the same output."""
    if check.ran and check.ran == check.before:
        return [folded_run(f"{check.name} on the series and on the base", check.ran)]
    runs = (("series", check.ran), ("base", check.before))
    return [folded_run(f"{check.name} on the {tree}", ran) for tree, ran in runs if ran]


def _remaining(rows: Sequence[ModelRow]) -> str:
    unexplained = [row for row in rows if row.after and not row.faults_after and not row.problem]
    parts = [fault_list((row, row.faults_after) for row in rows)]
    parts += [f"`verify` gave no details for {_with_levels(unexplained)}."] if unexplained else []
    return "\n\n".join(filter(None, parts))


def _with_levels(rows: Iterable[ModelRow]) -> str:
    return ", ".join(f"{code(row.model)} ({row.mode}: {levels_text(row.after)})" for row in rows)


def _commits(evidence: Evidence) -> str:
    failed = [
        f"{code(commit.sha[:12])} has a module that cannot be imported:\n\n{run_block(commit.imported)}"
        for commit in evidence.commits
        if commit.imported and not commit.imported.ok
    ]
    return "\n\n".join([commits_table(evidence), *failed, folded_names(evidence.files, "file")])


def _tool_changes(commits: Sequence[Commit]) -> str:
    """For each commit, the files that upstream's tools changed, and the runs of these tools that failed."""
    parts = []
    for commit in commits:
        changes = [
            f"{title}: {code_list(files)}"
            for title, files in (
                ("written by the converter", commit.regenerated),
                ("changed only by the other checkers", commit.checkers),
            )
            if files
        ]
        runs = [folded_run(ran.command, ran) for ran in commit.fixes if not ran.ok]
        if changes or runs:
            listed = [bullets(changes)] if changes else []
            parts += [f"{code(commit.sha[:12])}, {prose(commit.subject)}:", *listed, *runs]
    return "\n\n".join(parts)


def _reproduction(evidence: Evidence) -> str:
    parts = ["To make the same series again:", console([evidence.command])]
    if evidence.patches:
        switch = shlex.join(["git", "switch", "--create", evidence.branch, evidence.base])
        patches = shlex.join(["git", "am", *evidence.patches])
        parts += ["To apply its patches, at the top of a checkout:", console([switch, patches])]
    if evidence.rows:
        parts += [
            "To repeat the measurements, at the top of a checkout without the patches and of one with them:",
            console(verify_commands(evidence)),
        ]
    versions = ", ".join(f"{code(name)} {prose(version)}" for name, version in sorted(evidence.versions.items()))
    return "\n\n".join([*parts, *([f"Versions: {versions}."] if versions else [])])
