"""What a human takes to upstream: body.md with the facts and places for their own words, siblings.md, commands.

No box is ticked, nothing is argued and nothing is run here. All that is known is in evidence.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ckpt_surgery.text import bullets, code, folded, markdown_table, plural, prose
from ckpt_surgery.upstream.evidence.results import Evidence, SeriesStatus, Sibling
from ckpt_surgery.upstream.evidence.tables import (
    LONG,
    before_and_after,
    breaking_changes,
    checks_table,
    commits_table,
    console,
    faults_list,
    made_by,
    passed_count,
    regressions_table,
    rules_list,
    slow_tests,
    status_lines,
)
from ckpt_surgery.upstream.plan.layout import TESTS, UPSTREAM
from ckpt_surgery.upstream.plan.template import opened
from ckpt_surgery.upstream.run.delivery import BODY

_MARK = "write this yourself"
HUMAN_PLACE = f"<!-- {_MARK} -->"
"""Where the submitter's own words go: nothing is to be opened while it is there."""


_PLACE = f"**TO BE WRITTEN BY YOU** {HUMAN_PLACE}"
_READ_FIRST = (
    "# Read CONTRIBUTING.md of transformers first: "
    "who sends what nobody behind it understands has it closed, and may be blocked"
)
_BANNERS: dict[SeriesStatus, str] = {
    "not ready": "**Not ready**: not to be opened as a pull request as it is. Why, the gravest first:",
    "unchecked": "**Unchecked**: finish these before opening, as far as they can be:",
}
_NO_TEMPLATE = f"""\
# What this changes, and why

<!-- This checkout has no pull request template: these headings are those of ckpt_surgery. -->

Fixes # (issue)

## For the reviewers

{_PLACE}
"""
_STOPPED = (
    "This description stops here: no issue is named in which the change was agreed on. Agree on it in an issue first, "
    "then make the series again with `--coordination` and the address of that issue."
)


def pull_request_body(evidence: Evidence, template: str | None) -> str:
    """The description, on the checkout's own template; None stands for a checkout without one.

    Where no issue is named it stops after the facts: the rest of the template is for work that was agreed on.
    """
    head, rest = opened(template if template and template.strip() else _NO_TEMPLATE)
    parts = [_banner(evidence), head, f"{_PLACE}\n<!-- What changes and why, and which issue it fixes. -->"]
    parts += [_facts(evidence), _made(evidence)]
    parts += [_disclosure(evidence), rest] if evidence.coordination else [_STOPPED]
    return "\n\n".join(filter(None, parts)) + "\n"


def siblings_markdown(evidence: Evidence) -> str:
    """siblings.md: the same rules' findings in every family, those of this series first."""
    siblings = sorted(evidence.siblings, key=lambda one: not one.included)
    included = sum(one.included for one in siblings)
    parts = [
        f"# The same pattern elsewhere: {code(evidence.group)}",
        f"Static findings of the rules of this series in the base, {code(evidence.base_name)} at "
        f"{code(evidence.base)}: {plural(included, 'family', 'families')} in this series, "
        f"{len(siblings) - included} not.",
        rules_list(evidence),
        _siblings(siblings),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def next_commands(evidence: Evidence, patches_dir: Path, checkout: Path) -> list[str]:
    """What a human would run next, in this order, each a line for a shell as it stands.

    For a series that is not ready or unchecked: to look at it and to run what failed or was not run. Where no issue is
    named: to find or open one. Otherwise up to a draft, which is refused as long as body.md has an empty place.

    Args:
        patches_dir: the folder with the patches and body.md.
        checkout: the top of the checkout that has the branch.
    """
    git = ["git", "-C", str(checkout)]
    look = [
        shlex.join([*git, "log", "--stat", f"{evidence.base}..{evidence.branch}"]),
        shlex.join([*git, "diff", evidence.base, evidence.branch]),
    ]
    worktree = str(checkout.absolute().parent / f"transformers-{evidence.group}")
    enter = [shlex.join([*git, "worktree", "add", worktree, evidence.branch]), shlex.join(["cd", worktree])]
    if evidence.status != "ready":
        left = _left(evidence)
        return [_READ_FIRST, *look, *(enter if left else []), *left]
    tested = shlex.join(["python", "-m", "pytest", *(f"{TESTS}/{family}" for family in evidence.families)])
    looked = [
        _READ_FIRST,
        *_searches(evidence),
        *look,
        *enter,
        f"PYTHONPATH=src {tested}",
        "PYTHONPATH=src make fix-repo && git status --short",
    ]
    if not evidence.coordination:
        return [*looked, shlex.join(["gh", "issue", "create", "--repo", UPSTREAM, "--web"])]
    body = str(patches_dir.absolute() / BODY)
    draft = ["gh", "pr", "create", "--repo", UPSTREAM, "--base", "main", "--draft", "--body-file", body]
    return [
        *looked,
        "gh repo fork --remote --remote-name fork",
        shlex.join(["git", "push", "--set-upstream", "fork", evidence.branch]),
        f'! grep -n "{_MARK}" {shlex.quote(body)} && {shlex.join(draft)}',
    ]


def _left(evidence: Evidence) -> list[str]:
    """The commands of upstream's checkers that failed or did not run to an end."""
    runs = [one.ran for one in evidence.checks if one.ran and one.status in ("failed", "not run")]
    return [f"PYTHONPATH=src {command}" for command in dict.fromkeys(ran.command for ran in runs)]


def _searches(evidence: Evidence) -> list[str]:
    """The commands that look for the same work by others: in issues, and in open pull requests."""
    issue = re.search(r"/issues/(\d+)", evidence.coordination)
    wanted = [f"{issue[1]} in:body"] if issue else []
    wanted += ["gradient checkpointing", *(f"{family} gradient checkpointing" for family in evidence.families)]
    listed = ["--repo", UPSTREAM, "--state", "open", "--search"]
    return [
        *([shlex.join(["gh", "issue", "view", evidence.coordination, "--comments"])] if evidence.coordination else []),
        shlex.join(["gh", "issue", "list", *listed, "gradient checkpointing"]),
        *(shlex.join(["gh", "pr", "list", *listed, words]) for words in wanted),
    ]


def _banner(evidence: Evidence) -> str:
    """What has to be done before it is opened, above everything else; empty for a series that is ready."""
    if evidence.status not in _BANNERS:
        return ""
    lines = [_BANNERS[evidence.status], "", *bullets(map(prose, evidence.reasons)).splitlines()]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _facts(evidence: Evidence) -> str:
    """The evidence in short. What speaks against the series stands in the banner already, where there is one."""
    remaining = faults_list((row, row.faults_after) for row in evidence.rows)
    measured = [before_and_after(evidence.rows), *(["Faults that remain:", remaining] if remaining else [])]
    passed = passed_count(evidence.checks)
    checks = [checks_table(evidence.checks), f"{passed:,} passed." if passed else ""]
    parts = [
        "## Evidence",
        *([status_lines(evidence)] if evidence.status == "ready" else []),
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
    runs = [run for one in evidence.regressions for run in (one.before, one.after) if run]
    commands = list(dict.fromkeys(run.command for run in runs))
    return _commands("The commands of the tests", commands) if commands else ""


def _commands(what: str, commands: Sequence[str]) -> str:
    """Commands to type, folded where there are many."""
    shown = console(commands)
    return folded(what, shown) if len(commands) > LONG else f"{what}:\n\n{shown}"


def _made(evidence: Evidence) -> str:
    return (
        f"### Disclosure\n\nMade with {code(made_by(evidence))}, a program that rewrites model source by rules and "
        f"measures the result:\n\n{console([evidence.command])}"
    )


def _disclosure(evidence: Evidence) -> str:
    return "\n\n".join(
        [
            f"Agreed on in: {prose(evidence.coordination)}",
            f"Why this is not a duplicate: {_PLACE}",
            _commands("Commands that look for the same work", _searches(evidence)),
            f"Which lines I reviewed, and how: {_PLACE}",
            f"Which assistance I used beyond this program: {_PLACE}",
        ]
    )


def _siblings(siblings: Sequence[Sibling]) -> str:
    lines = [
        [
            code(one.family),
            "yes" if one.included else "no",
            " ".join(one.rules),
            ", ".join(map(code, one.places)),
            prose(one.reason),
        ]
        for one in siblings
    ]
    if not lines:
        return ""
    shown = markdown_table(["family", "in this series", "rules", "places", "reason"], lines)
    return folded(plural(len(lines), "family", "families"), shown) if len(lines) > LONG else shown
