"""What evidence.md and body.md both show of the evidence: status, tables, commands. Each is a piece of Markdown.

Nothing is claimed here that the data does not say. Which pieces a page has, and in what order, is the page's affair.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import get_args

from ckpt_surgery.markdown import bullets, code, fenced, folded, prose, table
from ckpt_surgery.upstream.results import (
    Check,
    CheckStatus,
    Evidence,
    Ran,
    Regression,
    RegressionKind,
    Row,
    RowVerdict,
    SeriesStatus,
    Signature,
)
from ckpt_surgery.verification.report.summary import plural
from ckpt_surgery.verification.results import LEVEL_TITLES, LEVELS, MODES, Mode

LONG = 12
"""A list with more items than this is folded."""

_MEASURED = (
    "`ckpt_surgery verify` ran one training step of a tiny model with random weights per class and mode, with "
    "checkpointing and without, on the base and on the series. Kept are the bytes that autograd held from the forward "
    "to the backward."
)

REGRESSIONS: dict[RegressionKind, str] = {
    "covered": "upstream's own test, as it stands",
    "exception removed": "upstream's own test, after the override that kept it from running went",
    "added": "a new test",
    "none": "no test",
}

_MEANING: dict[SeriesStatus, str] = {
    "ready": "what is left is the review by a person",
    "unchecked": "not everything was checked",
    "not ready": "it is not to be opened as a pull request as it is",
}
_CHECK_ORDER: tuple[CheckStatus, ...] = ("failed", "failed before too", "not run", "ok")
_MOST_NAMES = 3


def status_lines(evidence: Evidence) -> str:
    """Whether the series is ready, and what speaks against it or has to be known."""
    head = f"**Status: {evidence.status}**: {_MEANING[evidence.status]}."
    if not evidence.reasons:
        return head
    why = "To know before that:" if evidence.status == "ready" else "Why, the gravest first:"
    return f"{head} {why}\n\n{bullets(map(prose, evidence.reasons))}"


def commits_table(evidence: Evidence) -> str:
    """Each commit with its families, rules and files, and whether every changed module could be imported."""
    rows = [
        [
            code(one.sha[:12]),
            prose(one.subject),
            some(one.families),
            " ".join(one.rules),
            some(one.files),
            ran_word(one.imported),
        ]
        for one in evidence.commits
    ]
    return table(["commit", "subject", "families", "rules", "files", "import"], rows) if rows else "No commit."


def rules_list(evidence: Evidence) -> str:
    """What each rule in use says; empty where none is given."""
    return bullets(f"{rule}: {prose(said)}" for rule, said in sorted(evidence.rules.items()))


def verdicts(rows: Sequence[Row]) -> str:
    """How many rows have each verdict, and how they were measured."""
    if not rows:
        return "Not measured."
    found = [row.verdict for row in rows]
    said = [f"{found.count(verdict)} {verdict}" for verdict in get_args(RowVerdict) if verdict in found]
    counts = f"{plural(len(rows), 'pair')} of class and mode: {', '.join(said)}."
    return counts if all(row.problem for row in rows) else f"{counts}\n\n{_MEASURED}"


def levels_text(levels: Sequence[str]) -> str:
    """The levels that failed, or ok."""
    return ", ".join(levels) or "ok"


def levels_legend(rows: Iterable[Row]) -> str:
    """What the levels that failed somewhere ask; empty where none did."""
    failed = {level for row in rows for level in (*row.before, *row.after)}
    return bullets(f"`{level}`: {LEVEL_TITLES[level]}" for level in LEVELS if level in failed)


def faults_list(found: Iterable[tuple[Row, tuple[str, ...]]]) -> str:
    """Every sentence once, with the classes and modes it holds for; empty where there is none."""
    holders: dict[str, dict[str, list[Mode]]] = {}
    for row, sentences in found:
        for sentence in sentences:
            holders.setdefault(sentence, {}).setdefault(row.model, []).append(row.mode)
    return long_list([f"{_holders(models)}: {prose(sentence)}" for sentence, models in holders.items()], "fault")


def _holders(models: dict[str, list[Mode]]) -> str:
    """Classes with the modes they have a fault in; those with the same modes share them."""
    by_modes = sorted(models.items(), key=lambda item: item[1])
    return "; ".join(
        f"{', '.join(code(model) for model, _ in group)} ({'both modes' if set(modes) == set(MODES) else modes[0]})"
        for modes, group in groupby(by_modes, key=lambda item: item[1])
    )


def regressions_table(regressions: Sequence[Regression]) -> str:
    """Each family's regression test, and how it ended without the repair and with it."""
    rows = [
        [
            code(one.family),
            REGRESSIONS[one.kind],
            ", ".join(map(code, one.tests)) or prose(one.reason) or "-",
            before_word(one.before),
            ran_word(one.after),
        ]
        for one in regressions
    ]
    header = ["family", "kind", "tests", "on the base", "on the series"]
    return table(header, rows) if rows else "No regression test."


def checks_table(checks: Iterable[Check]) -> str:
    """Upstream's checkers, failures first."""
    rows = [
        [code(one.name), one.status, code(one.ran.command) if one.ran else "-", prose(one.reason)]
        for one in failures_first(checks)
    ]
    return table(["checker", "status", "command", "reason"], rows) if rows else "None of upstream's checkers was run."


def failures_first(checks: Iterable[Check]) -> list[Check]:
    """The checkers by status, and within one status as they come."""
    return sorted(checks, key=lambda check: _CHECK_ORDER.index(check.status))


def breaking_list(evidence: Evidence) -> str:
    """What may break code elsewhere: the unsafe repairs, and each changed signature with every caller."""
    unsafe = bullets(prose(sentence) for sentence in evidence.unsafe)
    return "\n\n".join(filter(None, [unsafe, *map(_signature, evidence.signatures)])) or "None."


def _signature(one: Signature) -> str:
    callers = long_list([code(caller) for caller in one.callers], "caller")
    called = f"Called from:\n\n{callers}" if callers else "No caller was found in the checkout."
    block = fenced(f"forward({one.before})  # before\nforward({one.after})  # after", "python")
    return f"`{one.class_name}.forward` in `{one.path}:{one.line}`:\n\n{block}\n\n{called}"


def ran_word(ran: Ran | None) -> str:
    """How a run ended, in a word or a few."""
    if ran is None:
        return "not run"
    return {0: "passed", 1: "failed"}.get(ran.code, f"ended with code {ran.code}")


def before_word(ran: Ran | None) -> str:
    """How the run on the base ended, which has to fail: a test that passes there shows nothing."""
    return f"{ran_word(ran)}, so it does not show the fault" if ran and ran.ok else ran_word(ran)


def ran_block(ran: Ran) -> str:
    """One command and what it wrote."""
    return fenced(f"$ {ran.command}\n{ran.output or '(no output)'}", "console")


def ran_folded(what: str, ran: Ran) -> str:
    """One run behind a line that says how it ended."""
    return folded(f"{what}: {ran_word(ran)}", ran_block(ran))


def console(commands: Iterable[str]) -> str:
    """Commands to type."""
    return fenced("\n".join(f"$ {command}" for command in commands), "console")


def verify_commands(evidence: Evidence) -> list[str]:
    """The commands, one a family, that measure again what the rows say; for the top of a checkout."""
    measured: dict[str, dict[str, None]] = {}
    for row in evidence.rows:
        measured.setdefault(row.family, {})[row.model.partition(" (")[0]] = None  # without the word for a variant
    return [f"PYTHONPATH=src ckpt_surgery verify {shlex.join(models)}" for _, models in sorted(measured.items())]


def made_by(evidence: Evidence) -> str:
    """The program that made the series, with its version where that is known."""
    return f"ckpt_surgery {evidence.versions.get('ckpt_surgery', '')}".rstrip()


def coordination_line(evidence: Evidence) -> str:
    """Where the work was agreed on."""
    return prose(evidence.coordination) if evidence.coordination else "no issue was named"


def long_list(items: Sequence[str], noun: str, nouns: str = "") -> str:
    """A list of Markdown items, folded where it is long; empty where there are none."""
    listed = bullets(items)
    return folded(plural(len(items), noun, nouns), listed) if len(items) > LONG else listed


def some(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """The first few names as code, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(code, names[:most])) + (f" and {more:,} more" if more > 0 else "")
