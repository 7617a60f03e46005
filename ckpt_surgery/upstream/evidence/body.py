"""body.md: the description of the pull request, with the facts and with places for the submitter's own words.

No box is ticked and nothing is argued here. The whole evidence is in evidence.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.text import bullets, code, folded, prose
from ckpt_surgery.upstream.evidence.commands import console
from ckpt_surgery.upstream.evidence.folding import LONG
from ckpt_surgery.upstream.evidence.measurements import before_and_after, fault_list
from ckpt_surgery.upstream.evidence.placeholders import PLACEHOLDER
from ckpt_surgery.upstream.evidence.results import Evidence, SeriesStatus
from ckpt_surgery.upstream.evidence.searches import search_commands
from ckpt_surgery.upstream.evidence.tables import (
    breaking_changes,
    checks_table,
    commits_table,
    passed_count,
    regressions_table,
    slow_tests,
    status_lines,
)
from ckpt_surgery.upstream.evidence.template import split_template

BODY = "body.md"
"""The name of the file."""

_BANNERS = {
    SeriesStatus.NOT_READY: "**Not ready**: do not open this as a pull request as it is. Reasons, most serious first:",
    SeriesStatus.UNCHECKED: "**Unchecked**: finish these checks before you open a pull request, as far as you can:",
}
_NO_TEMPLATE = f"""\
# What this changes, and why

<!-- This checkout has no pull request template: these headings are those of ckpt_surgery. -->

Fixes # (issue)

## For the reviewers

{PLACEHOLDER}
"""
_STOPPED = (
    "This description ends here, because no issue is named in which the change was agreed on. Agree on it in an issue "
    "first, then make the series again with `--coordination` and the address of that issue."
)


def pull_request_body(evidence: Evidence, template: str | None) -> str:
    """The description, on the checkout's own template; None stands for a checkout without one.

    If no issue is named, it ends after the facts: the rest of the template is for work that was agreed on.
    """
    head, rest = split_template(template if template and template.strip() else _NO_TEMPLATE)
    parts = [_banner(evidence), head, f"{PLACEHOLDER}\n<!-- What changes and why, and which issue it fixes. -->"]
    parts += [_facts(evidence), _disclosure(evidence)]
    parts += [_submitter(evidence), rest] if evidence.coordination else [_STOPPED]
    return "\n\n".join(filter(None, parts)) + "\n"


def _banner(evidence: Evidence) -> str:
    """What has to be done before it is opened, above everything else; empty for a series that is ready."""
    if evidence.status not in _BANNERS:
        return ""
    lines = [_BANNERS[evidence.status], "", *bullets(prose(reason.text) for reason in evidence.reasons).splitlines()]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _facts(evidence: Evidence) -> str:
    """The evidence in short. If there is a banner, it has the reasons against the series already."""
    remaining = fault_list((row, row.faults_after) for row in evidence.rows)
    measured = [before_and_after(evidence.rows), *(["Faults that remain:", remaining] if remaining else [])]
    passed = passed_count(evidence.checks)
    checks = [checks_table(evidence.checks), f"{passed:,} passed." if passed else ""]
    parts = [
        "## Evidence",
        *([status_lines(evidence)] if evidence.status is SeriesStatus.READY else []),
        f"### Commits\n\n{commits_table(evidence)}",
        "\n\n".join(["### Before and after", *measured]),
        f"### Regression tests\n\n{regressions_table(evidence.regressions)}",
        _regression_commands(evidence),
        breaking_changes(evidence, "### "),
        "\n\n".join(["### Upstream's checkers and tests", *filter(None, checks)]) if evidence.checks else "",
        slow_tests(evidence),
    ]
    return "\n\n".join(filter(None, parts))


def _regression_commands(evidence: Evidence) -> str:
    runs = [run for test in evidence.regressions for run in (test.before, test.after) if run]
    commands = list(dict.fromkeys(run.command for run in runs))
    return _commands("The commands of the tests", commands) if commands else ""


def _commands(title: str, commands: Sequence[str]) -> str:
    """Commands to type, folded if there are many."""
    block = console(commands)
    return folded(title, block) if len(commands) > LONG else f"{title}:\n\n{block}"


def _disclosure(evidence: Evidence) -> str:
    program = f"ckpt_surgery {evidence.versions.get('ckpt_surgery', '')}".rstrip()
    return (
        f"### Disclosure\n\nMade with {code(program)}, a program that rewrites model source by rules and measures the "
        f"result:\n\n{console([evidence.command])}"
    )


def _submitter(evidence: Evidence) -> str:
    """What only the submitter can say."""
    return "\n\n".join(
        [
            f"Agreed on in: {prose(evidence.coordination)}",
            f"Why this is not a duplicate: {PLACEHOLDER}",
            _commands("Commands that look for the same work", search_commands(evidence)),
            f"Which lines I reviewed, and how: {PLACEHOLDER}",
            f"Which assistance I used beyond this program: {PLACEHOLDER}",
        ]
    )
