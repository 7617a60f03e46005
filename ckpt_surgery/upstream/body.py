"""What a human takes to upstream: body.md with the facts and places for their own words, siblings.md, commands.

No box is ticked, nothing is argued and nothing is run here. All that is known is in evidence.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ckpt_surgery.markdown import code, fenced, folded, prose, table
from ckpt_surgery.upstream.results import Evidence, Row, Sibling
from ckpt_surgery.upstream.tables import (
    LONG,
    breaking_list,
    checks_table,
    commits_table,
    console,
    coordination_line,
    faults_list,
    levels_text,
    long_list,
    made_by,
    regressions_table,
    rules_list,
    status_lines,
    verdicts,
)
from ckpt_surgery.upstream.template import opened
from ckpt_surgery.verification.report.summary import plural
from ckpt_surgery.verification.units import size

HUMAN_PLACE = "<!-- write this yourself -->"
"""Where the submitter's own words go."""

UPSTREAM = "huggingface/transformers"

_NO_TEMPLATE = f"""\
# What this changes, and why

<!-- This checkout has no pull request template: these headings are those of ckpt_surgery. -->

Fixes # (issue)

## For the reviewers

{HUMAN_PLACE}
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
    parts = [head, f"{HUMAN_PLACE}\n<!-- What changes and why, and which issue it fixes. -->", _facts(evidence)]
    parts += [_disclosure(evidence), rest] if evidence.coordination else [_made(evidence), _STOPPED]
    if evidence.status == "not ready":
        parts.insert(0, "> **Not ready**: not to be opened as a pull request as it is. The reasons are below.")
    return "\n\n".join(filter(None, parts)) + "\n"


def siblings_markdown(evidence: Evidence) -> str:
    """siblings.md: the same rules' findings in every family, those of this series first."""
    included = [one for one in evidence.siblings if one.included]
    others = [one for one in evidence.siblings if not one.included]
    parts = [
        f"# The same pattern elsewhere: {code(evidence.group)}",
        f"Static findings of the rules of this series in the base, {code(evidence.base_name)} at "
        f"{code(evidence.base)}: {plural(len(included), 'family', 'families')} in this series, {len(others)} not.",
        rules_list(evidence),
        "## In this series",
        _siblings(included),
        "## Not in this series",
        _siblings(others),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def next_commands(evidence: Evidence, patches_dir: Path, checkout: Path) -> list[str]:
    """The git and gh commands that a human would run next, in this order, each for a shell as it stands.

    Only to look at a series that is not ready; to find or open the issue where none is named; otherwise up to a draft.

    Args:
        patches_dir: the folder with the patches and body.md.
        checkout: the top of the checkout that has the branch.
    """
    look = [
        shlex.join(["git", "-C", str(checkout), "log", "--stat", f"{evidence.base}..{evidence.branch}"]),
        shlex.join(["git", "-C", str(checkout), "diff", evidence.base, evidence.branch]),
    ]
    if evidence.status == "not ready":
        return look
    if not evidence.coordination:
        return [*_searches(evidence), *look, shlex.join(["gh", "issue", "create", "--repo", UPSTREAM, "--web"])]
    folder = patches_dir.absolute()
    clone = f"transformers-{evidence.group}"
    commands = [
        ["git", "clone", f"https://github.com/{UPSTREAM}", clone],
        ["git", "-C", clone, "switch", "--create", evidence.branch, evidence.base],
        ["git", "-C", clone, "am", *(str(folder / patch) for patch in evidence.patches)],
        ["cd", clone],
        ["PYTHONPATH=src", "python", "-m", "pytest", *(f"tests/models/{family}" for family in evidence.families)],
        ["gh", "repo", "fork", "--remote", "--remote-name", "fork"],
        ["git", "push", "--set-upstream", "fork", evidence.branch],
        [
            "gh",
            "pr",
            "create",
            "--repo",
            UPSTREAM,
            "--base",
            "main",
            "--draft",
            "--body-file",
            str(folder / "body.md"),
        ],
    ]
    return [*_searches(evidence), *look, *map(shlex.join, commands)]


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


def _facts(evidence: Evidence) -> str:
    tests = "\n\n".join(filter(None, [regressions_table(evidence.regressions), _regression_commands(evidence)]))
    return "\n\n".join(
        [
            f"## Evidence\n\n{status_lines(evidence)}",
            f"### Commits\n\n{commits_table(evidence)}",
            f"### Before and after\n\n{_before_and_after(evidence.rows)}",
            f"### Breaking changes\n\n{breaking_list(evidence)}",
            f"### Regression tests\n\n{tests}",
            f"### Upstream's checkers and tests\n\n{checks_table(evidence.checks)}",
            f"### Slow tests\n\n{fenced(evidence.run_slow) if evidence.families else 'No family is touched.'}",
        ]
    )


def _before_and_after(rows: Sequence[Row]) -> str:
    """One line a class; both modes share a cell where they are equal."""
    if not rows:
        return verdicts(rows)
    by_class: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_class.setdefault((row.family, row.model), []).append(row)
    lines = table(["class", "before", "after", "kept", "verdict"], map(_class_row, by_class.values()))
    shown = folded(plural(len(by_class), "class", "classes"), lines) if len(by_class) > LONG else lines
    remaining = faults_list((row, row.faults_after) for row in rows if not row.problem)
    return "\n\n".join([verdicts(rows), shown, *(["Faults that remain:", remaining] if remaining else [])])


def _class_row(rows: Sequence[Row]) -> list[str]:
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


def _regression_commands(evidence: Evidence) -> str:
    runs = [run for one in evidence.regressions for run in (one.before, one.after) if run]
    commands = list(dict.fromkeys(run.command for run in runs))
    return f"The commands:\n\n{console(commands)}" if commands else ""


def _made(evidence: Evidence) -> str:
    return (
        f"### Disclosure\n\nMade with {code(made_by(evidence))}, a program that rewrites source by rules and measures "
        f"the result:\n\n{console([evidence.command])}"
    )


def _disclosure(evidence: Evidence) -> str:
    searches = _searches(evidence)
    shown = console(searches)
    return "\n\n".join(
        [
            _made(evidence),
            f"Agreed on in: {coordination_line(evidence)}",
            f"Why this is not a duplicate: {HUMAN_PLACE}",
            folded("Commands that look for the same work", shown) if len(searches) > LONG else shown,
            f"Which lines I reviewed, and how: {HUMAN_PLACE}",
            f"Which assistance I used beyond this program: {HUMAN_PLACE}",
        ]
    )


def _siblings(siblings: Sequence[Sibling]) -> str:
    rows = [[code(one.family), " ".join(one.rules), str(len(one.places)), prose(one.reason)] for one in siblings]
    places = [f"{code(one.family)}: {', '.join(map(code, one.places))}" for one in siblings if one.places]
    parts = [table(["family", "rules", "places", "reason"], rows), "The places:" if places else ""]
    return "\n\n".join(filter(None, [*parts, long_list(places, "family", "families")])) if rows else "None."
