"""What evidence.md and body.md both show: status, commits, regression tests, checkers and breaking changes.

Each function returns a piece of Markdown that claims nothing beyond the data. Which pieces a page has, and in what
order, the page decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt_surgery.text import bullets, code, fenced, folded, markdown_table, prose
from ckpt_surgery.upstream.evidence.commands import exit_word
from ckpt_surgery.upstream.evidence.folding import LONG, bullet_list, code_list, folded_if_long, some_names
from ckpt_surgery.upstream.evidence.results import (
    CheckerResult,
    CheckStatus,
    CommandRun,
    Evidence,
    RegressionKind,
    RegressionTest,
    SeriesStatus,
    SignatureChange,
)

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
"""For what the reasons of the status say already."""


def status_lines(evidence: Evidence) -> str:
    """Whether the series is ready, with the reasons against it or its known limits."""
    head = f"**Status: {evidence.status}**: {_STATUS[evidence.status]}."
    if not evidence.reasons:
        return head
    title = "Known limits:" if evidence.status is SeriesStatus.READY else "Reasons, most serious first:"
    return f"{head} {title}\n\n{bullets(prose(reason.text) for reason in evidence.reasons)}"


def commits_table(evidence: Evidence) -> str:
    """Each commit with its families, rules and files, and what each rule finds."""
    lines = [
        [
            code(commit.sha[:12]),
            prose(commit.subject),
            some_names(commit.families),
            " ".join(commit.rules),
            some_names(commit.files),
        ]
        for commit in evidence.commits
    ]
    table = markdown_table(["commit", "subject", "families", "rules", "files"], lines)
    return "\n\n".join(filter(None, [folded_if_long(table, len(lines), "commit"), rules_list(evidence)]))


def rules_list(evidence: Evidence) -> str:
    """What each rule in use finds; empty if none is given."""
    return bullets(f"{rule}: {prose(summary)}" for rule, summary in sorted(evidence.rules.items()))


def regressions_table(regressions: Sequence[RegressionTest]) -> str:
    """The regression test of each family with its two runs; if there are many, those that exist are folded."""
    header = ["family", "kind", "tests", "on the base", "on the series"]
    whole = markdown_table(header, map(_regression_line, regressions))
    if len(regressions) <= LONG:
        return whole if regressions else "No regression test."
    missing = [_regression_line(test) for test in regressions if not test.exists]
    open_part = [markdown_table(header, missing)] if missing else []
    return "\n\n".join([*open_part, folded(f"Regression tests of {len(regressions):,} families", whole)])


def _regression_line(test: RegressionTest) -> list[str]:
    tests = code_list(test.tests)
    kind = _REGRESSION[test.kind] + (f" ({prose(test.reason)})" if test.reason and tests else "")
    return [
        code(test.family),
        kind,
        tests or ("-" if test.exists else _SEE_ABOVE),
        _base_word(test.before),
        exit_word(test.after),
    ]


def _base_word(ran: CommandRun | None) -> str:
    """How the run on the base ended. It has to fail: a test that passes there proves nothing."""
    return f"{exit_word(ran)}, so it does not show the fault" if ran and ran.ok else exit_word(ran)


def checks_table(checks: Iterable[CheckerResult]) -> str:
    """Upstream's checkers that did not pass, failures first; empty if all passed."""
    lines = [
        [code(check.name), check.status, code(check.ran.command) if check.ran else "-", _check_reason(check)]
        for check in failures_first(checks)
        if check.status is not CheckStatus.OK
    ]
    return markdown_table(["checker", "status", "command", "reason"], lines) if lines else ""


def _check_reason(check: CheckerResult) -> str:
    """What a failure means; why a checker was not run is said by the reasons of the status."""
    if check.status is CheckStatus.NOT_RUN:
        return _SEE_ABOVE
    return prose("; ".join(filter(None, [check.reason, check.since and f"it fails since the commit {check.since!r}"])))


def passed_count(checks: Iterable[CheckerResult]) -> int:
    """How many of upstream's checkers passed."""
    return sum(check.status is CheckStatus.OK for check in checks)


def failures_first(checks: Iterable[CheckerResult]) -> list[CheckerResult]:
    """The checkers by status, and in their own order within one status."""
    return sorted(checks, key=lambda check: list(CheckStatus).index(check.status))


def breaking_changes(evidence: Evidence, heading: str) -> str:
    """What may break code elsewhere: the unsafe repairs, and each changed signature with all its callers.

    `heading` is the mark of its heading (`## `). If there is nothing, the piece is one line without a heading.
    """
    unsafe = bullets(prose(sentence) for sentence in evidence.unsafe)
    parts = [*filter(None, [unsafe]), *map(_signature, evidence.signatures)]
    return "\n\n".join([f"{heading}Breaking changes", *parts]) if parts else "Breaking changes: none."


def _signature(change: SignatureChange) -> str:
    callers = bullet_list([code(caller) for caller in change.callers], "caller")
    called = f"Called from:\n\n{callers}" if callers else "No caller was found in the checkout."
    block = fenced(f"forward({change.before})  # before\nforward({change.after})  # after", "python")
    return f"`{change.class_name}.forward` in `{change.path}:{change.line}`:\n\n{block}\n\n{called}"


def slow_tests(evidence: Evidence) -> str:
    """How a maintainer starts the slow tests; empty if no family is changed."""
    return f"A maintainer starts the slow tests with {code(evidence.run_slow)}." if evidence.families else ""
