"""evidence.md: everything that is known about one series, for the person who reviews it and for upstream's reviewers.

The page says what the data says and no more; it holds no time and no random order.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ckpt_surgery.markdown import bullets, code, fenced, folded, prose, table
from ckpt_surgery.upstream.results import Check, Commit, Evidence, Regression, Row
from ckpt_surgery.upstream.tables import (
    LONG,
    REGRESSIONS,
    before_word,
    breaking_list,
    checks_table,
    commits_table,
    console,
    coordination_line,
    failures_first,
    faults_list,
    levels_legend,
    levels_text,
    long_list,
    ran_block,
    ran_folded,
    ran_word,
    regressions_table,
    rules_list,
    status_lines,
    verdicts,
    verify_commands,
)
from ckpt_surgery.verification.report.summary import plural
from ckpt_surgery.verification.units import size

_SETTLED = ("repaired", "ok before")


def evidence_markdown(evidence: Evidence) -> str:
    """The page. It depends on the evidence alone, and not on the order of its mappings."""
    parts = [
        _heading(evidence),
        _section("Versions", _versions(evidence)),
        _section("To make and measure it again", _again(evidence)),
        _section("Commits", _commits(evidence)),
        _section("Before and after", _before_and_after(evidence.rows)),
        _section("Faults that remain", _remaining(evidence.rows)),
        _section("Faults before", _earlier(evidence.rows)),
        _section("Regression tests", _regressions(evidence.regressions)),
        _section("Upstream's checkers and tests", _checks(evidence.checks)),
        _section("Breaking changes", breaking_list(evidence)),
        _section("What upstream's converter and checkers changed", _tools(evidence.commits)),
        _section("Files", long_list(list(map(code, evidence.files)), "file") or "None."),
        _section("Models", long_list(list(map(code, evidence.models)), "class", "classes") or "None was run."),
        _section("Slow tests", _slow_tests(evidence)),
        _section("Notes", bullets(map(prose, evidence.notes)) or "None."),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}"


def _heading(evidence: Evidence) -> str:
    about = [
        f"branch: {code(evidence.branch)}, {plural(len(evidence.commits), 'commit')}",
        f"base: {code(evidence.base_name)} at {code(evidence.base)}",
        f"agreed on in: {coordination_line(evidence)}",
    ]
    title = f"# Evidence for {code(evidence.group)}: {evidence.status}"
    return f"{title}\n\n{status_lines(evidence)}\n\nThe series:\n\n{bullets(about)}"


def _versions(evidence: Evidence) -> str:
    return table(["name", "version"], [[code(name), prose(said)] for name, said in sorted(evidence.versions.items())])


def _again(evidence: Evidence) -> str:
    parts = ["The same series again:", console([evidence.command])]
    if evidence.patches:
        switch = shlex.join(["git", "switch", "--create", evidence.branch, evidence.base])
        patches = [shlex.join(["git", "am", patch]) for patch in evidence.patches]
        parts += ["Its patches, at the top of a checkout:", console([switch, *patches])]
    if evidence.rows:
        parts += [
            "What was measured, at the top of a checkout without the patches and of one with them:",
            console(verify_commands(evidence)),
        ]
    return "\n\n".join(parts)


def _commits(evidence: Evidence) -> str:
    failed = [
        f"{code(one.sha[:12])} has a module that cannot be imported:\n\n{ran_block(one.imported)}"
        for one in evidence.commits
        if not one.imported.ok
    ]
    return "\n\n".join(filter(None, [commits_table(evidence), rules_list(evidence), *failed]))


def _before_and_after(rows: Sequence[Row]) -> str:
    """The table; of a long one, what is not settled stays in sight and the whole is folded."""
    shown = [_rows_table(rows)] if rows else []
    if len(rows) > LONG:
        open_rows = [row for row in rows if row.verdict not in _SETTLED]
        whole = folded(f"All {plural(len(rows), 'pair')} of class and mode", _rows_table(rows))
        shown = [_rows_table(open_rows), whole] if open_rows else [whole]
    legend = ["The levels that failed ask:", levels_legend(rows)] if levels_legend(rows) else []
    return "\n\n".join([verdicts(rows), *shown, *legend])


def _rows_table(rows: Iterable[Row]) -> str:
    header = ["family", "class", "mode", "before", "after", "kept before", "kept after", "verdict"]
    return table(header, map(_row, rows))


def _row(row: Row) -> list[str]:
    where = [code(row.family), code(row.model), row.mode]
    if row.problem:
        return [*where, "-", "-", "-", "-", f"{row.verdict}: {prose(row.problem)}"]
    kept = [size(count) if count else "-" for count in (row.kept_before, row.kept_after)]
    return [*where, levels_text(row.before), levels_text(row.after), *kept, row.verdict]


def _remaining(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if not row.problem]
    if not measured:
        return "Not measured."
    silent = [row for row in measured if row.after and not row.faults_after]
    parts = [faults_list((row, row.faults_after) for row in measured)]
    parts += [f"No sentence is known for {_named(silent)}."] if silent else []
    seen = f"None was seen, {plural(len(measured), 'pair')} of class and mode measured."
    return "\n\n".join(filter(None, parts)) or seen


def _named(rows: Iterable[Row]) -> str:
    return ", ".join(f"{code(row.model)} ({row.mode}: {levels_text(row.after)})" for row in rows)


def _earlier(rows: Sequence[Row]) -> str:
    found = faults_list((row, row.faults_before) for row in rows if not row.problem)
    return found or "No sentence about a fault on the base is known."


def _regressions(regressions: Sequence[Regression]) -> str:
    return "\n\n".join([regressions_table(regressions), *map(_regression, regressions)])


def _regression(one: Regression) -> str:
    parts = [f"### {code(one.family)}: {REGRESSIONS[one.kind]}"]
    parts += [prose(one.reason)] if one.reason else []
    parts += [f"In {', '.join(map(code, one.paths))}:"] if one.paths else []
    parts += [bullets(map(code, one.tests))] if one.tests else []
    for where, word, ran in (
        ("On the base", before_word(one.before), one.before),
        ("On the series", ran_word(one.after), one.after),
    ):
        if ran is not None:
            parts.append(folded(f"{where}: {word}", ran_block(ran)))
        elif one.kind != "none":
            parts.append(f"{where}: not run.")
    return "\n\n".join(parts)


def _checks(checks: Iterable[Check]) -> str:
    ordered = failures_first(checks)
    return "\n\n".join([checks_table(ordered), *(part for check in ordered for part in _check(check))])


def _check(check: Check) -> list[str]:
    """The runs of one checker: in sight where it fails on the series alone, otherwise folded."""
    before = [ran_folded(f"{check.name} on the base", check.before)] if check.before else []
    if check.ran is None:
        return before
    if check.status == "failed":
        heading = f"### {code(check.name)}: failed (exit code {check.ran.code})"
        return [heading, *([prose(check.reason)] if check.reason else []), ran_block(check.ran), *before]
    return [ran_folded(f"{check.name} on the series", check.ran), *before]


def _tools(commits: Sequence[Commit]) -> str:
    parts = []
    for one in commits:
        changed = [
            *_changed("files that the converter wrote", one.regenerated),
            *_changed("files that only the other checkers changed", one.checkers),
        ]
        runs = [ran_folded(run.command, run) for run in one.fixes]
        if changed or runs:
            parts += [f"### {code(one.sha[:12])} {prose(one.subject)}", *changed, *runs]
    return "\n\n".join(parts) or "Nothing: no run of them is recorded, and no file."


def _changed(what: str, files: Sequence[str]) -> list[str]:
    return [f"{what.capitalize()}:", long_list(list(map(code, files)), "file")] if files else []


def _slow_tests(evidence: Evidence) -> str:
    if not evidence.families:
        return "No family is touched."
    return f"A maintainer starts them with this comment:\n\n{fenced(evidence.run_slow)}"
