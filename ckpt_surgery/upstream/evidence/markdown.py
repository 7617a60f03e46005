"""The pieces of Markdown that evidence.md and body.md both show; the pages decide which, and in what order.

They claim nothing beyond the data. Long lists are folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, MODES, Mode
from ckpt_surgery.text import (
    bullets,
    code,
    fenced,
    folded,
    markdown_table,
    paragraphs,
    plural,
    prose,
    size,
    some,
    titled,
)
from ckpt_surgery.upstream.evidence.results import (
    CheckerResult,
    CheckStatus,
    CommandRun,
    Evidence,
    ModelRow,
    RegressionKind,
    RegressionTest,
    RowVerdict,
    SeriesStatus,
)

LONG = 12
"""A list with more items than this is folded."""

_STATUS = {
    SeriesStatus.READY: "a person has to review it",
    SeriesStatus.UNCHECKED: "not everything could be checked",
    SeriesStatus.NOT_READY: "do not open it as a pull request as it is",
}
_REGRESSION = {
    RegressionKind.COVERED: "upstream's own test, as it stands",
    RegressionKind.EXCEPTION_REMOVED: "upstream's own test, without the override that kept it from running",
    RegressionKind.ADDED: "a new test",
    RegressionKind.IMPOSSIBLE: "no test",
    RegressionKind.NONE: "no test",
}

_SEE_ABOVE = "see above"
"""Refers to the reasons of the status."""
_METHOD = (
    "`ckpt_surgery verify` ran one training step of a tiny model with random weights for each class and mode, with "
    "and without checkpointing, on the base and on the series. The column `kept` shows the bytes that autograd kept "
    "from the forward to the backward."
)


def folded_if_long(text: str, count: int, noun: str, nouns: str = "") -> str:
    """Return a piece of Markdown that shows `count` items, folded if there are many."""
    return folded(plural(count, noun, nouns), text) if count > LONG else text


def folded_names(names: Sequence[str], noun: str, nouns: str = "") -> str:
    """Return all names on one folded line; empty if there are none."""
    return folded(plural(len(names), noun, nouns), code_list(names)) if names else ""


def code_list(names: Iterable[str]) -> str:
    """Return the names as code, separated by commas."""
    return ", ".join(map(code, names))


def exit_word(ran: CommandRun | None) -> str:
    """Return how a run ended, in a few words."""
    if ran is None:
        return "not run"
    return {0: "passed", 1: "failed"}.get(ran.code, f"exit code {ran.code}")


def run_block(ran: CommandRun) -> str:
    """Return a command with its output, as a code block."""
    return fenced(f"$ {ran.command}\n{ran.output or '(no output)'}", "console")


def folded_run(title: str, ran: CommandRun) -> str:
    """Return a run, folded under a line that says how it ended."""
    return folded(f"{title}: {exit_word(ran)}", run_block(ran))


def status_lines(evidence: Evidence) -> str:
    """Say whether the series is ready, with the reasons against it or its known limits."""
    head = f"**Status: {evidence.status}**: {_STATUS[evidence.status]}."
    if not evidence.reasons:
        return head
    title = "Known limits:" if evidence.status is SeriesStatus.READY else "Reasons, most serious first:"
    return f"{head} {title}\n\n{bullets(prose(reason.text) for reason in evidence.reasons)}"


def commits_table(evidence: Evidence) -> str:
    """Return each commit with its families, rules and files, and what each rule finds."""
    lines = []
    for commit in evidence.commits:
        families, files = (some(map(code, names)) for names in (commit.families, commit.files))
        lines.append([code(commit.sha[:12]), prose(commit.subject), families, " ".join(commit.rules), files])
    table = markdown_table(["commit", "subject", "families", "rules", "files"], lines)
    return paragraphs(folded_if_long(table, len(lines), "commit"), rules_list(evidence))


def rules_list(evidence: Evidence) -> str:
    """Say what each rule in use finds; empty if none is given."""
    return bullets(f"{rule}: {prose(summary)}" for rule, summary in sorted(evidence.rules.items()))


def regressions_table(regressions: Sequence[RegressionTest]) -> str:
    """Return a table of the regression tests with their two runs; if it is long, only missing tests are in sight."""
    header = ["family", "kind", "tests", "on the base", "on the series"]
    lines = []
    for test in regressions:
        tests = code_list(test.tests)
        kind = _REGRESSION[test.kind] + (f" ({prose(test.reason)})" if test.reason and tests else "")
        # it has to fail on the base: a test that passes there proves nothing
        before = exit_word(test.before) + (", so it does not show the fault" if test.before and test.before.ok else "")
        shown = tests or ("-" if test.exists else _SEE_ABOVE)
        lines.append([code(test.family), kind, shown, before, exit_word(test.after)])
    whole = markdown_table(header, lines)
    if len(regressions) <= LONG:
        return whole if regressions else "No regression test."
    missing = [line for line, test in zip(lines, regressions, strict=True) if not test.exists]
    in_sight = markdown_table(header, missing) if missing else ""
    return paragraphs(in_sight, folded(f"Regression tests of {len(regressions):,} families", whole))


def checks_table(checks: Iterable[CheckerResult]) -> str:
    """Return a table of upstream's checkers that did not pass, failures first; empty if all passed."""
    lines = []
    for check in failures_first(checks):
        if check.status is not CheckStatus.OK:
            reason = _SEE_ABOVE if check.status is CheckStatus.NOT_RUN else prose(check.reason)
            lines.append([code(check.name), check.status, code(check.ran.command) if check.ran else "-", reason])
    return markdown_table(["checker", "status", "command", "reason"], lines) if lines else ""


def failures_first(checks: Iterable[CheckerResult]) -> list[CheckerResult]:
    """Sort the checkers by status, worst first; within one status they keep their order."""
    return sorted(checks, key=lambda check: list(CheckStatus).index(check.status))


def breaking_changes(evidence: Evidence, heading: str) -> str:
    """Say what may break code elsewhere: the unsafe repairs, and each changed signature.

    `heading` is the Markdown before the title (`## `). If nothing may break, one line without a heading says so.
    """
    parts = [bullets(prose(sentence) for sentence in evidence.unsafe)]
    for change in evidence.signatures:
        block = fenced(f"forward({change.before})  # before\nforward({change.after})  # after", "python")
        parts.append(f"`{change.class_name}.forward` in `{change.path}:{change.line}`:\n\n{block}")
    return titled(f"{heading}Breaking changes", paragraphs(*parts)) or "Breaking changes: none."


def slow_tests(evidence: Evidence) -> str:
    """Say how a maintainer starts the slow tests; empty if no family is changed."""
    return f"A maintainer starts the slow tests with {code(evidence.run_slow)}." if evidence.families else ""


def before_and_after(rows: Sequence[ModelRow]) -> str:
    """Say how many rows have each verdict, and show a table with one line for each class.

    Both modes share a cell if they agree. Classes that were ok before are folded; if the table is long, so are those
    that are repaired. The reasons of the status say why a class was not measured.
    """
    if not rows:
        return "Not measured."
    by_class: dict[tuple[str, str], list[ModelRow]] = {}
    for row in rows:
        by_class.setdefault((row.family, row.model), []).append(row)

    def not_all(verdict: RowVerdict) -> list[list[ModelRow]]:
        return [group for group in by_class.values() if any(row.verdict is not verdict for row in group)]

    listed = not_all(RowVerdict.OK_BEFORE)
    unsettled = [group for group in not_all(RowVerdict.REPAIRED) if group in listed]
    ok = [group[0].model for group in by_class.values() if group not in listed]
    verdicts = [row.verdict for row in rows]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in RowVerdict if verdict in verdicts]
    modes = f", {plural(len(MODES), 'mode')} each" if len(rows) == len(by_class) * len(MODES) else ""
    summary = f"all {verdicts[0]}" if len(counts) == 1 else f"{', '.join(counts)} of {plural(len(rows), 'pair')}"
    parts = [
        f"{plural(len(by_class), 'class', 'classes')}{modes}: {summary}.",
        "" if all(row.problem for row in rows) else _METHOD,
        _class_table(unsettled if len(listed) > LONG else listed),
    ]
    if len(listed) > LONG:
        parts.append(folded(f"{plural(len(listed), 'class', 'classes')} before and after", _class_table(listed)))
    if ok:
        parts.append(folded(f"{plural(len(ok), 'class', 'classes')} ok before and after", code_list(ok)))
    failed = {level for row in rows if not row.problem for level in (*row.before, *row.after)}
    legend = bullets(f"`{level}`: {LEVEL_TITLES[level]}" for level in LEVELS if level in failed)
    return paragraphs(*parts, titled("What the levels check:", legend))


def fault_list(faults: Iterable[tuple[ModelRow, tuple[str, ...]]]) -> str:
    """List each fault of the measured rows once, with its classes and modes; empty if there are none.

    Classes that have it in the same modes are listed together.
    """
    models_of: dict[str, dict[str, list[Mode]]] = {}
    for row, sentences in faults:
        for sentence in sentences if not row.problem else ():
            models_of.setdefault(sentence, {}).setdefault(row.model, []).append(row.mode)
    items = []
    for sentence, models in models_of.items():
        by_modes = groupby(sorted(models.items(), key=lambda item: item[1]), key=lambda item: item[1])
        holders = "; ".join(
            f"{code_list(model for model, _ in group)} ({'both modes' if set(modes) == set(MODES) else modes[0]})"
            for modes, group in by_modes
        )
        items.append(f"{holders}: {prose(sentence)}")
    return folded_if_long(bullets(items), len(items), "fault")


def _class_table(by_class: Iterable[Sequence[ModelRow]]) -> str:
    lines = []
    for rows in by_class:
        by_row = []
        for row in rows:
            sizes = tuple(size(count) if count else "-" for count in (row.kept_before, row.kept_after))
            kept = " -> ".join(sizes) if sizes != ("-", "-") else "-"
            levels = (", ".join(row.before) or "ok", ", ".join(row.after) or "ok", kept)
            by_row.append((*(("-", "-", "-") if row.problem else levels), row.verdict))
        cells = [code(rows[0].model)]
        for column in zip(*by_row, strict=True):
            by_mode = (f"{row.mode}: {text}" for row, text in zip(rows, column, strict=True))
            cells.append(column[0] if len(set(column)) == 1 else "; ".join(by_mode))
        lines.append(cells)
    return markdown_table(["class", "before", "after", "kept", "verdict"], lines) if lines else ""
