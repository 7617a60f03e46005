"""Render body.md, the description of the pull request: the facts, and places for the submitter's own words.

No box is ticked and nothing is argued. The whole evidence is in evidence.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ckpt_surgery.text import bullets, code, console, folded, paragraphs, prose, titled
from ckpt_surgery.upstream.evidence import markdown
from ckpt_surgery.upstream.evidence.results import CheckStatus, Evidence, SeriesStatus
from ckpt_surgery.upstream.layout import TESTS, UPSTREAM

BODY = "body.md"
"""The name of the file."""
MARK = "write this yourself"
"""The command that opens the pull request refuses a body that still contains this."""
PLACEHOLDER = f"**TO BE WRITTEN BY YOU** <!-- {MARK} -->"

_BANNERS = {
    SeriesStatus.NOT_READY: "**Not ready**: do not open this as a pull request as it is. Reasons, most serious first:",
    SeriesStatus.UNCHECKED: "**Unchecked**: finish these checks before you open a pull request, as far as you can:",
}
_STOPPED = (
    "This description ends here, because no issue is named in which the change was agreed on. Agree on it in an issue "
    "first, then make the series again with `--coordination` and the address of that issue."
)
_READ_FIRST = (
    "# Read CONTRIBUTING.md of transformers first: pull requests that their submitter does not understand are closed, "
    "and the submitter may be blocked"
)
_TOPIC = "gradient checkpointing"
_TICKED = re.compile(r"^([ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)+)\[[xX]\](?![(\[:])", re.MULTILINE)
_HEAD = re.compile(r"\A.*?^#{1,6}[ \t][^\n]*(?:\s*<!--(?:(?!-->).)*-->[ \t]*$)?", re.MULTILINE | re.DOTALL)


def pull_request_body(evidence: Evidence, template: str) -> str:
    """Return the description, filled into the checkout's own `template`, which may be empty.

    If no issue is named, it ends after the facts: the rest of the template is for work that was agreed on.
    """
    head, rest = split_template(template)
    banner = ""
    if evidence.status in _BANNERS:
        reasons = bullets(prose(reason.text) for reason in evidence.reasons)
        banner = "\n".join(f"> {line}".rstrip() for line in [_BANNERS[evidence.status], "", *reasons.splitlines()])
    program = f"ckpt_surgery {evidence.versions.get('ckpt_surgery', '')}".rstrip()
    # only the submitter can say these
    own = [
        f"Agreed on in: {prose(evidence.coordination)}",
        f"Why this is not a duplicate: {PLACEHOLDER}",
        _commands("Commands that look for the same work", _search_commands(evidence)),
        f"Which lines I reviewed, and how: {PLACEHOLDER}",
        f"Which assistance I used beyond this program: {PLACEHOLDER}",
    ]
    page = paragraphs(
        banner,
        head,
        f"{PLACEHOLDER}\n<!-- What changes and why, and which issue it fixes. -->",
        _facts(evidence),
        f"### Disclosure\n\nMade with {code(program)}, a program that rewrites model source by rules and measures the "
        f"result:\n\n{console([evidence.command])}",
        *([*own, rest] if evidence.coordination else [_STOPPED]),
    )
    return f"{page}\n"


def split_template(template: str) -> tuple[str, str]:
    """Split a pull request template, with its boxes unticked, where our part goes.

    That is below the first heading and the comment that directly follows it; at the top if there is no heading.
    """
    text = _TICKED.sub(r"\1[ ]", template.replace("\r\n", "\n"))
    head = _HEAD.match(text)
    end = head.end() if head else 0
    return text[:end].strip("\n"), text[end:].strip("\n")


def next_commands(evidence: Evidence, patches_dir: Path, checkout: Path) -> list[str]:
    """List the shell commands that a person would run next, in order. Nothing is run here.

    For a series that is not ready or unchecked, they show it, and run again what failed or was not run. If no issue is
    named, they find or open one. Otherwise they go up to a draft pull request, which is refused while a place of
    body.md is not filled in.

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
    if evidence.status is not SeriesStatus.READY:
        unfinished = (CheckStatus.FAILED, CheckStatus.NOT_RUN)
        runs = [check.ran for check in evidence.checks if check.ran and check.status in unfinished]
        again = [f"PYTHONPATH=src {command}" for command in dict.fromkeys(ran.command for ran in runs)]
        return [_READ_FIRST, *look, *(enter if again else []), *again]
    test = shlex.join(["python", "-m", "pytest", *(f"{TESTS}/{family}" for family in evidence.families)])
    review = [
        _READ_FIRST,
        *_search_commands(evidence),
        *look,
        *enter,
        f"PYTHONPATH=src {test}",
        "PYTHONPATH=src make fix-repo && git status --short",
    ]
    if not evidence.coordination:
        return [*review, shlex.join(["gh", "issue", "create", "--repo", UPSTREAM, "--web"])]
    body = str(patches_dir.absolute() / BODY)
    draft = ["gh", "pr", "create", "--repo", UPSTREAM, "--base", "main", "--draft", "--body-file", body]
    return [
        *review,
        "gh repo fork --remote --remote-name fork",
        shlex.join(["git", "push", "--set-upstream", "fork", evidence.branch]),
        f'! grep -n "{MARK}" {shlex.quote(body)} && {shlex.join(draft)}',
    ]


def _facts(evidence: Evidence) -> str:
    """Return a summary of the evidence; the reasons against the series are in the banner."""
    remaining = markdown.fault_list((row, row.faults_after) for row in evidence.rows)
    passed = sum(check.status is CheckStatus.OK for check in evidence.checks)
    runs = [run for test in evidence.regressions for run in (test.before, test.after) if run]
    commands = list(dict.fromkeys(run.command for run in runs))
    checks = paragraphs(markdown.checks_table(evidence.checks), f"{passed:,} passed." if passed else "")
    return paragraphs(
        "## Evidence",
        markdown.status_lines(evidence) if evidence.status is SeriesStatus.READY else "",
        titled("### Commits", markdown.commits_table(evidence)),
        titled("### Before and after", markdown.before_and_after(evidence.rows)),
        titled("Faults that remain:", remaining),
        titled("### Regression tests", markdown.regressions_table(evidence.regressions)),
        _commands("The commands of the tests", commands) if commands else "",
        markdown.breaking_changes(evidence, "### "),
        titled("### Upstream's checkers and tests", checks),
        markdown.slow_tests(evidence),
    )


def _commands(title: str, commands: Sequence[str]) -> str:
    """Return commands to type, folded if there are many."""
    block = console(commands)
    return folded(title, block) if len(commands) > markdown.LONG else f"{title}:\n\n{block}"


def _search_commands(evidence: Evidence) -> list[str]:
    """List the commands that look for the same work among upstream's open issues and pull requests."""
    issue = re.search(r"/issues/(\d+)", evidence.coordination)
    phrases = [f"{issue[1]} in:body"] if issue else []
    phrases += [_TOPIC, *(f"{family} {_TOPIC}" for family in evidence.families)]
    options = ["--repo", UPSTREAM, "--state", "open", "--search"]
    view = ["gh", "issue", "view", evidence.coordination, "--comments"]
    return [
        *([shlex.join(view)] if evidence.coordination else []),
        shlex.join(["gh", "issue", "list", *options, _TOPIC]),
        *(shlex.join(["gh", "pr", "list", *options, phrase]) for phrase in phrases),
    ]
