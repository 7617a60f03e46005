"""The branch of a series: made, replaced and put back, and never at the cost of a commit that a person made.

A ref beside the branch, `refs/ckpt-surgery/GROUP`, remembers what we made. If the branch names anything else, it holds
work that is not ours, whatever its commits look like.
"""

from __future__ import annotations

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.layout import text_of
from ckpt_surgery.upstream.run.git import Git

_FOLDER = "ckpt-surgery"


def branch_of(group: str) -> str:
    """The branch of a series."""
    return f"{_FOLDER}/{group}"


def free_branch(git: Git, branch: str) -> str:
    """The tip of our own branch of that name; empty if there is none.

    Raises UpstreamError if the branch holds something that was not made here, is a symbolic ref, is checked out or
    rebased somewhere, or cannot exist beside another branch.
    """
    ref = f"refs/heads/{branch}"
    for other in git.run("for-each-ref", "--format=%(refname)", "refs/heads").split("\n"):
        if other == f"refs/heads/{_FOLDER}" or other.startswith(f"{ref}/"):
            name = other.removeprefix("refs/heads/")
            raise UpstreamError(f"the branch {name} leaves no room for {branch}: rename it, git branch -m {name} NAME")
    if git.asks("symbolic-ref", "--quiet", ref):
        raise UpstreamError(f"the branch {branch} is a symbolic ref: delete it (git symbolic-ref --delete {ref})")
    _check_use(git, branch, ref)
    tip = git.asks("rev-parse", "--verify", "--quiet", ref)
    if tip and tip != git.asks("rev-parse", "--verify", "--quiet", f"refs/{branch}"):
        raise UpstreamError(
            f"the branch {branch} holds a commit that is not ours ({tip[:12]}): rename the branch to keep it "
            f"(git branch -m {branch} NAME), or delete it (git branch -D {branch})"
        )
    return tip


def _check_use(git: Git, branch: str, ref: str) -> None:
    """Raises UpstreamError if a worktree has the branch checked out, or rebases it."""
    for entry in git.run("worktree", "list", "--porcelain").split("\n\n"):
        first, *attributes = entry.split("\n")
        if f"branch {ref}" in attributes:
            where = first.removeprefix("worktree ")
            raise UpstreamError(f"the branch {branch} is checked out in {where}: switch to another one there first")
    common = git.folder / git.run("rev-parse", "--git-common-dir")
    for folder in (common, *(common / "worktrees").glob("*/")):
        for head in (folder / "rebase-merge/head-name", folder / "rebase-apply/head-name"):
            if text_of(head).strip() == ref:
                raise UpstreamError(f"the branch {branch} is being rebased: finish that first (git rebase --continue)")


def set_branch(git: Git, branch: str, tip: str) -> None:
    """Point the branch to `tip`, if it is ours or does not exist. Raises UpstreamError as `free_branch` does."""
    before = free_branch(git, branch)
    if before != tip:
        _move(git, branch, tip, before)


def put_back(git: Git, branch: str, tip: str, before: str) -> None:
    """Undo a `set_branch` to `tip`: the branch points to `before` again, unless it has moved since."""
    if tip != before and git.asks("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}") == tip:
        _move(git, branch, before, tip)


def _move(git: Git, branch: str, new: str, old: str) -> None:
    """Move the branch and the ref that remembers it, both or neither; an empty name means that there is none."""
    nothing = "0" * len(new or old)
    orders = [
        "start",
        f"update refs/heads/{branch} {new or nothing} {old or nothing}",
        f"update refs/{branch} {new or nothing}",
        "prepare",
        "commit",
    ]
    git.run("update-ref", "--no-deref", "--stdin", given="\n".join(orders) + "\n")
