"""evidence.md: what was found about one series, for the person who reviews it and for upstream's reviewers.

The page says what the data says and no more; it holds no time and no random order. What commands that passed wrote
is in evidence.json alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ckpt_surgery.text import bullets, code, folded, plural, prose
from ckpt_surgery.upstream.evidence.results import Check, Commit, Evidence, Regression, Row
from ckpt_surgery.upstream.evidence.tables import (
    before_and_after,
    breaking_changes,
    checks_table,
    commits_table,
    console,
    failures_first,
    faults_list,
    folded_names,
    levels_text,
    long_list,
    passed_count,
    ran_block,
    ran_folded,
    regressions_table,
    slow_tests,
    status_lines,
    verify_commands,
)


def evidence_markdown(evidence: Evidence) -> str:
    """The page. It depends on the evidence alone, and not on the order of its mappings."""
    parts = [
        _heading(evidence),
        _section("Before and after", _before_and_after(evidence)),
        _section("Regression tests", _regressions(evidence.regressions)),
        breaking_changes(evidence, "## "),
        _section("Upstream's checkers and tests", _checks(evidence.checks)),
        _section("Faults before", faults_list((row, row.faults_before) for row in evidence.rows)),
        _section("Faults that remain", _remaining(evidence.rows)),
        _section("Commits", _commits(evidence)),
        _section("What upstream's converter and checkers changed", _tools(evidence.commits)),
        _section("Notes", bullets(map(prose, evidence.notes))),
        slow_tests(evidence),
        _section("To make and measure it again", _again(evidence)),
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


def _regressions(regressions: Sequence[Regression]) -> str:
    """The table; the failing runs in full, which are the proof; of the passing ones the last line."""
    runs = [
        (f"{one.family} on the {where}", ran)
        for one in regressions
        for where, ran in (("base", one.before), ("series", one.after))
        if ran
    ]
    passed = long_list(
        [f"{what}: {code(ran.command)}: {_last_line(ran.output)}" for what, ran in runs if ran.ok], "run"
    )
    failed = [ran_folded(what, ran) for what, ran in runs if not ran.ok]
    return "\n\n".join(filter(None, [regressions_table(regressions), *failed, passed]))


def _last_line(output: str) -> str:
    return prose(next(iter(output.rstrip().splitlines()[-1:]), "passed"))


def _checks(checks: Iterable[Check]) -> str:
    ordered = failures_first(checks)
    outputs = [part for check in ordered if check.status != "ok" for part in _outputs(check)]
    passed = ", ".join(code(check.name) for check in ordered if check.status == "ok")
    shown = folded(f"{passed_count(ordered):,} passed", passed) if passed else ""
    return "\n\n".join(filter(None, [checks_table(ordered), *outputs, shown]))


def _outputs(check: Check) -> list[str]:
    """The runs of one checker, folded; one alone where it wrote the same on the series and on the base."""
    if check.ran and check.ran == check.before:
        return [ran_folded(f"{check.name} on the series and on the base", check.ran)]
    runs = (("series", check.ran), ("base", check.before))
    return [ran_folded(f"{check.name} on the {where}", ran) for where, ran in runs if ran]


def _remaining(rows: Sequence[Row]) -> str:
    silent = [row for row in rows if row.after and not row.faults_after and not row.problem]
    parts = [faults_list((row, row.faults_after) for row in rows)]
    parts += [f"No sentence is known for {_named(silent)}."] if silent else []
    return "\n\n".join(filter(None, parts))


def _named(rows: Iterable[Row]) -> str:
    return ", ".join(f"{code(row.model)} ({row.mode}: {levels_text(row.after)})" for row in rows)


def _commits(evidence: Evidence) -> str:
    failed = [
        f"{code(one.sha[:12])} has a module that cannot be imported:\n\n{ran_block(one.imported)}"
        for one in evidence.commits
        if one.imported and not one.imported.ok
    ]
    return "\n\n".join([commits_table(evidence), *failed, folded_names(evidence.files, "file")])


def _tools(commits: Sequence[Commit]) -> str:
    """Commit by commit, the files that they changed and their runs that failed."""
    parts = []
    for one in commits:
        said = [
            f"{what}: {', '.join(map(code, files))}"
            for what, files in (
                ("the converter wrote", one.regenerated),
                ("only the other checkers changed", one.checkers),
            )
            if files
        ]
        runs = [ran_folded(ran.command, ran) for ran in one.fixes if not ran.ok]
        if said or runs:
            parts += [f"{code(one.sha[:12])}, {prose(one.subject)}:", *([bullets(said)] if said else []), *runs]
    return "\n\n".join(parts)


def _again(evidence: Evidence) -> str:
    parts = ["The same series again:", console([evidence.command])]
    if evidence.patches:
        switch = shlex.join(["git", "switch", "--create", evidence.branch, evidence.base])
        patches = shlex.join(["git", "am", *evidence.patches])
        parts += ["Its patches, at the top of a checkout:", console([switch, patches])]
    if evidence.rows:
        parts += [
            "What was measured, at the top of a checkout without the patches and of one with them:",
            console(verify_commands(evidence)),
        ]
    versions = ", ".join(f"{code(name)} {prose(said)}" for name, said in sorted(evidence.versions.items()))
    return "\n\n".join([*parts, *([f"Versions: {versions}."] if versions else [])])
