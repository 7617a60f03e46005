"""What a person would run next. Nothing is run here."""

from __future__ import annotations

import shlex
from pathlib import Path

from ckpt_surgery.upstream.evidence.body import BODY
from ckpt_surgery.upstream.evidence.placeholders import MARK
from ckpt_surgery.upstream.evidence.results import CheckStatus, Evidence, SeriesStatus
from ckpt_surgery.upstream.evidence.searches import search_commands
from ckpt_surgery.upstream.layout import TESTS, UPSTREAM

_READ_FIRST = (
    "# Read CONTRIBUTING.md of transformers first: pull requests that their submitter does not understand are closed, "
    "and the submitter may be blocked"
)


def next_commands(evidence: Evidence, patches_dir: Path, checkout: Path) -> list[str]:
    """What a person would run next, in this order; each is one line for a shell.

    For a series that is not ready or unchecked: look at it, and run what failed or was not run. If no issue is named:
    find or open one. Otherwise everything up to a draft pull request, which is refused while body.md has a place that
    is not filled in.

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
        unfinished = _unfinished(evidence)
        return [_READ_FIRST, *look, *(enter if unfinished else []), *unfinished]
    test = shlex.join(["python", "-m", "pytest", *(f"{TESTS}/{family}" for family in evidence.families)])
    review = [
        _READ_FIRST,
        *search_commands(evidence),
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


def _unfinished(evidence: Evidence) -> list[str]:
    """The commands of upstream's checkers that failed or did not run to their end."""
    unfinished = (CheckStatus.FAILED, CheckStatus.NOT_RUN)
    runs = [check.ran for check in evidence.checks if check.ran and check.status in unfinished]
    return [f"PYTHONPATH=src {command}" for command in dict.fromkeys(ran.command for ran in runs)]
