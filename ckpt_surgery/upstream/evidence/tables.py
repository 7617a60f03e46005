"""What evidence.md and body.md both show of the evidence: status, tables, commands. Each is a piece of Markdown.

Nothing is claimed here that the data does not say. Which pieces a page has, and in what order, is the page's affair.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import get_args

from ckpt_surgery.measure.results import LEVEL_TITLES, LEVELS, MODES, Mode
from ckpt_surgery.text import bullets, code, fenced, folded, markdown_table, plural, prose, size
from ckpt_surgery.upstream.evidence.results import (
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

LONG = 12
"""A list with more items than this is folded."""

_MEASURED = (
    "`ckpt_surgery verify` ran one training step of a tiny model with random weights per class and mode, with "
    "checkpointing and without, on the base and on the series. Kept are the bytes that autograd held from the forward "
    "to the backward."
)

_REGRESSIONS: dict[RegressionKind, str] = {
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
_CHECK_ORDER: tuple[CheckStatus, ...] = ("failed", "failed otherwise before", "failed before too", "not run", "ok")
_MOST_NAMES = 3


def status_lines(evidence: Evidence) -> str:
    """Whether the series is ready, and what speaks against it or has to be known."""
    head = f"**Status: {evidence.status}**: {_MEANING[evidence.status]}."
    if not evidence.reasons:
        return head
    why = "Known limits:" if evidence.status == "ready" else "Why, the gravest first:"
    return f"{head} {why}\n\n{bullets(map(prose, evidence.reasons))}"


def commits_table(evidence: Evidence) -> str:
    """Each commit with its families, rules and files, and what each rule says."""
    lines = [
        [code(one.sha[:12]), prose(one.subject), some(one.families), " ".join(one.rules), some(one.files)]
        for one in evidence.commits
    ]
    shown = markdown_table(["commit", "subject", "families", "rules", "files"], lines)
    shown = folded(plural(len(lines), "commit"), shown) if len(lines) > LONG else shown
    return "\n\n".join(filter(None, [shown, rules_list(evidence)]))


def rules_list(evidence: Evidence) -> str:
    """What each rule in use says; empty where none is given."""
    return bullets(f"{rule}: {prose(said)}" for rule, said in sorted(evidence.rules.items()))


def before_and_after(rows: Sequence[Row]) -> str:
    """How many rows have each verdict, and a line a class; the classes that were well before are folded.

    Of many lines, those of classes that are repaired are folded as well. Both modes share a cell where they are equal.
    """
    if not rows:
        return "Not measured."
    by_class: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_class.setdefault((row.family, row.model), []).append(row)
    well = [found[0].model for found in by_class.values() if _all(found, "ok before")]
    told = [found for found in by_class.values() if not _all(found, "ok before")]
    unsettled = [found for found in told if not _all(found, "repaired")]
    parts = [_counts(rows, len(by_class))]
    if len(told) <= LONG:
        parts += [_classes(told)] if told else []
    else:
        parts += [_classes(unsettled)] if unsettled else []
        parts.append(folded(f"{plural(len(told), 'class', 'classes')} before and after", _classes(told)))
    if well:
        parts.append(folded(f"{plural(len(well), 'class', 'classes')} ok before and after", _names(well)))
    legend = _levels_legend(rows)
    return "\n\n".join([*parts, *(["What the levels check:", legend] if legend else [])])


def _all(rows: Iterable[Row], verdict: RowVerdict) -> bool:
    return all(row.verdict == verdict for row in rows)


def _counts(rows: Sequence[Row], classes: int) -> str:
    """How many rows have each verdict, and how they were measured."""
    found = [row.verdict for row in rows]
    said = [f"{found.count(verdict)} {verdict}" for verdict in get_args(RowVerdict) if verdict in found]
    each = f", {plural(len(MODES), 'mode')} each" if len(rows) == classes * len(MODES) else ""
    told = f"all {found[0]}" if len(said) == 1 else f"{', '.join(said)} of {plural(len(rows), 'pair')}"
    counts = f"{plural(classes, 'class', 'classes')}{each}: {told}."
    return counts if all(row.problem for row in rows) else f"{counts}\n\n{_MEASURED}"


def _classes(by_class: Iterable[Sequence[Row]]) -> str:
    return markdown_table(["class", "before", "after", "kept", "verdict"], map(_class_line, by_class))


def _class_line(rows: Sequence[Row]) -> list[str]:
    cells = [
        [(row.mode, "-" if row.problem else levels_text(row.before)) for row in rows],
        [(row.mode, "-" if row.problem else levels_text(row.after)) for row in rows],
        [(row.mode, _kept(row)) for row in rows],
        [(row.mode, row.verdict + (f" ({prose(row.problem)})" if row.problem else "")) for row in rows],
    ]
    return [code(rows[0].model), *map(_joined, cells)]


def _kept(row: Row) -> str:
    before, after = (size(count) if count and not row.problem else "-" for count in (row.kept_before, row.kept_after))
    return f"{before} -> {after}" if (before, after) != ("-", "-") else "-"


def _joined(said: Sequence[tuple[str, str]]) -> str:
    """What every mode says, once; or what each says, with its name."""
    texts = list(dict.fromkeys(text for _, text in said))
    return texts[0] if len(texts) == 1 else "; ".join(f"{mode}: {text}" for mode, text in said)


def _levels_legend(rows: Iterable[Row]) -> str:
    """What the levels that failed somewhere check; empty where none did."""
    failed = {level for row in rows if not row.problem for level in (*row.before, *row.after)}
    return bullets(f"`{level}`: {LEVEL_TITLES[level]}" for level in LEVELS if level in failed)


def levels_text(levels: Sequence[str]) -> str:
    """The levels that failed, or ok."""
    return ", ".join(levels) or "ok"


def faults_list(found: Iterable[tuple[Row, tuple[str, ...]]]) -> str:
    """Every sentence about a measured row once, with the classes and modes it holds for; empty where there is none."""
    holders: dict[str, dict[str, list[Mode]]] = {}
    for row, sentences in found:
        for sentence in sentences if not row.problem else ():
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
    """Each family's regression test, and how it ended without the repair and with it; of many, most are folded."""
    header = ["family", "kind", "tests", "on the base", "on the series"]
    whole = markdown_table(header, map(_regression_line, regressions))
    if len(regressions) <= LONG:
        return whole if regressions else "No regression test."
    without = [_regression_line(one) for one in regressions if one.kind == "none"]
    shown = [markdown_table(header, without)] if without else []
    return "\n\n".join([*shown, folded(f"Regression tests of {len(regressions):,} families", whole)])


def _regression_line(one: Regression) -> list[str]:
    tests = ", ".join(map(code, one.tests))
    kind = _REGRESSIONS[one.kind] + (f" ({prose(one.reason)})" if one.reason and tests else "")
    return [code(one.family), kind, tests or prose(one.reason) or "-", _before_word(one.before), ran_word(one.after)]


def checks_table(checks: Iterable[Check]) -> str:
    """Upstream's checkers that did not pass, failures first; empty where all passed."""
    lines = [
        [code(one.name), one.status, code(one.ran.command) if one.ran else "-", prose(one.reason)]
        for one in failures_first(checks)
        if one.status != "ok"
    ]
    return markdown_table(["checker", "status", "command", "reason"], lines) if lines else ""


def passed_count(checks: Iterable[Check]) -> int:
    """How many of upstream's checkers passed."""
    return sum(check.status == "ok" for check in checks)


def failures_first(checks: Iterable[Check]) -> list[Check]:
    """The checkers by status, and within one status as they come."""
    return sorted(checks, key=lambda check: _CHECK_ORDER.index(check.status))


def breaking_changes(evidence: Evidence, heading: str) -> str:
    """What may break code elsewhere: the unsafe repairs, and each changed signature with every caller.

    It stands under `heading` (`## `), and is one line where there is nothing.
    """
    unsafe = bullets(prose(sentence) for sentence in evidence.unsafe)
    parts = [*filter(None, [unsafe]), *map(_signature, evidence.signatures)]
    return "\n\n".join([f"{heading}Breaking changes", *parts]) if parts else "Breaking changes: none."


def _signature(one: Signature) -> str:
    callers = long_list([code(caller) for caller in one.callers], "caller")
    called = f"Called from:\n\n{callers}" if callers else "No caller was found in the checkout."
    block = fenced(f"forward({one.before})  # before\nforward({one.after})  # after", "python")
    return f"`{one.class_name}.forward` in `{one.path}:{one.line}`:\n\n{block}\n\n{called}"


def slow_tests(evidence: Evidence) -> str:
    """How a maintainer has the slow tests run; empty where no family is touched."""
    return f"A maintainer starts the slow tests with {code(evidence.run_slow)}." if evidence.families else ""


def ran_word(ran: Ran | None) -> str:
    """How a run ended, in a word or a few."""
    if ran is None:
        return "not run"
    return {0: "passed", 1: "failed"}.get(ran.code, f"ended with code {ran.code}")


def _before_word(ran: Ran | None) -> str:
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


def long_list(items: Sequence[str], noun: str) -> str:
    """A list of Markdown items, folded where it is long; empty where there are none."""
    listed = bullets(items)
    return folded(plural(len(items), noun), listed) if len(items) > LONG else listed


def folded_names(names: Sequence[str], noun: str, nouns: str = "") -> str:
    """All names on one folded line; empty where there are none."""
    return folded(plural(len(names), noun, nouns), _names(names)) if names else ""


def some(names: Sequence[str]) -> str:
    """The first few names as code, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return _names(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))
