"""Whether a series can be made for a checkout, and on which commit."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.git import BaseCommit, Git


def check_checkout(git: Git, base: str) -> BaseCommit:
    """The commit that `base` names in a checkout that a series can be made for.

    Raises UpstreamError: no git repository or not its top, a dirty tree, a detached HEAD, no such base, no identity.
    """
    _check_top(git)
    if not git.asks("symbolic-ref", "--quiet", "HEAD"):
        raise UpstreamError(f"HEAD is detached in {git.folder}: switch to a branch first (git switch main)")
    changed = git.listed("status", "--porcelain", "-z", "--untracked-files=no")
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UpstreamError(
            f"{git.folder} has changes that are not committed ({changed[0][3:]}{more}): commit or stash them first"
        )
    sha = _base_commit(git, base)
    _check_identity(git)
    return BaseCommit(base, sha, git.run("show", "--no-patch", "--format=%cI", sha))


def _check_top(git: Git) -> None:
    """Raises UpstreamError if this is not the top of a working tree."""
    top = git.try_run("rev-parse", "--show-toplevel")
    if top.failed or not top.output:
        if git.asks("rev-parse", "--is-bare-repository") == "true":
            raise UpstreamError(f"{git.folder} is a bare repository: name a checkout made by git clone")
        folder = git.folder.resolve()
        if top.failed and any(map(_holds_repository, (folder, *folder.parents))):
            raise UpstreamError(f"git refuses to work in {git.folder}: {top.reason}")
        raise UpstreamError(f"{git.folder} is not in a git repository: name a checkout made by git clone")
    if Path(top.output).resolve() != git.folder.resolve():
        raise UpstreamError(f"{git.folder} is a folder inside the checkout {top.output}: name the checkout itself")


def _holds_repository(folder: Path) -> bool:
    """Whether there is a repository, sound or not, bare or not, in this very folder."""
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def _base_commit(git: Git, base: str) -> str:
    """The hash of the commit that `base` names. Raises UpstreamError if there is none."""
    names = (f"refs/heads/{base}", f"refs/remotes/{base}", base)  # a branch comes before a tag of the same name
    options = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    sha = next(filter(None, (git.asks(*options, f"{name}^{{commit}}") for name in names)), "")
    if sha:
        return sha
    branches = git.run("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes").split("\n")
    near = [*(name for name in branches if name.endswith(f"/{base}")), *get_close_matches(base, branches, n=1)]
    hint = f"did you mean --base {near[0]}?" if near and near[0] else "name the branch to build on with --base"
    raise UpstreamError(f"there is no commit {base!r} in {git.folder}: {hint}")


def _check_identity(git: Git) -> None:
    """Raises UpstreamError if git does not know who makes the commits."""
    identity = git.try_run("var", "GIT_COMMITTER_IDENT")
    if identity.failed or (not git.asks("config", "user.email") and "GIT_COMMITTER_EMAIL" not in os.environ):
        why = f" ({identity.reason})" if identity.failed else ""
        raise UpstreamError(
            f"git does not know who makes the commits{why}: set user.name and user.email "
            "(git config --global user.email YOU@EXAMPLE.ORG)"
        )
