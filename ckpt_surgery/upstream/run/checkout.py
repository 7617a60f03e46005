"""Check the user's checkout, make the worktrees in which series are built, and move the branches of the series.

A branch is never moved if that would lose a commit that a person made. A ref beside it, `refs/ckpt-surgery/GROUP`,
remembers what we made: if the branch points anywhere else, it holds work that is not ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.git import BaseCommit, Git, GitError

_IDENTITY = re.compile(r"(?P<name>.*) <(?P<email>.*)> \d+ [+-]\d+")


def check_checkout(git: Git, base: str) -> BaseCommit:
    """Return the commit that `base` names, if a series can be made for this checkout.

    Raises:
        UpstreamError: this is not the top of a working tree, files are changed, HEAD is detached, there is no such
            base, or git does not know who makes the commits.
    """
    try:
        top = git.run("rev-parse", "--show-toplevel")
    except GitError as error:
        raise UpstreamError(
            f"{git.folder} is not in a git repository: name a checkout made by git clone ({error})"
        ) from None
    if Path(top).resolve() != git.folder.resolve():
        raise UpstreamError(f"{git.folder} is a folder inside the checkout {top}: name the checkout itself")
    if not git.asks("symbolic-ref", "--quiet", "HEAD"):
        raise UpstreamError(f"HEAD is detached in {git.folder}: switch to a branch first (git switch main)")
    changed = git.listed("status", "--porcelain", "-z", "--untracked-files=no")
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UpstreamError(
            f"{git.folder} has changes that are not committed ({changed[0][3:]}{more}): commit or stash them first"
        )
    # a branch takes precedence over a tag of the same name
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    shas = (git.asks(*asked, f"{name}^{{commit}}") for name in (f"refs/heads/{base}", f"refs/remotes/{base}", base))
    sha = next(filter(None, shas), "")
    if not sha:
        branches = git.run("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes").split("\n")
        near = [*(name for name in branches if name.endswith(f"/{base}")), *get_close_matches(base, branches, n=1)]
        hint = f"did you mean --base {near[0]}?" if near and near[0] else "name the branch to build on with --base"
        raise UpstreamError(f"there is no commit {base!r} in {git.folder}: {hint}")
    if not git.asks("var", "GIT_COMMITTER_IDENT") or not (
        git.asks("config", "user.email") or "GIT_COMMITTER_EMAIL" in os.environ
    ):
        raise UpstreamError(
            "git does not know who makes the commits: set user.name and user.email "
            "(git config --global user.email YOU@EXAMPLE.ORG)"
        )
    return BaseCommit(base, sha, git.run("show", "--no-patch", "--format=%cI", sha))


@dataclass(frozen=True, slots=True)
class SeriesBranch:
    """The branch of a series in the user's checkout."""

    git: Git
    name: str

    def tip(self) -> str:
        """Return the commit that the branch points to; empty if there is none.

        Raises:
            UpstreamError: the branch is checked out somewhere, or holds a commit that is not ours.
        """
        shown = self.git.run("for-each-ref", "--format=%(objectname) %(worktreepath)", f"refs/heads/{self.name}")
        tip, _, worktree = shown.partition(" ")
        if worktree:
            raise UpstreamError(
                f"the branch {self.name} is checked out in {worktree}: switch to another one there first"
            )
        if tip and tip != self.git.asks("rev-parse", "--verify", "--quiet", f"refs/{self.name}"):
            raise UpstreamError(
                f"the branch {self.name} holds a commit that is not ours ({tip[:12]}): rename the branch to keep it "
                f"(git branch -m {self.name} NAME), or delete it (git branch -D {self.name})"
            )
        return tip

    def set(self, tip: str) -> None:
        """Point the branch to `tip`, if it holds only our work or does not exist.

        Raises:
            UpstreamError: as `tip` does.
        """
        before = self.tip()
        if before != tip:
            self._move(tip, before)

    def put_back(self, tip: str, before: str) -> None:
        """Undo a `set` to `tip`: the branch points to `before` again, unless it has moved since."""
        if tip != before and self.git.asks("rev-parse", "--verify", "--quiet", f"refs/heads/{self.name}") == tip:
            self._move(before, tip)

    def _move(self, new: str, old: str) -> None:
        """Move the branch and its ref together; an empty `new` deletes them, an empty `old` creates them."""
        nothing = "0" * len(new or old)
        commands = [
            "start",
            f"update refs/heads/{self.name} {new or nothing} {old or nothing}",
            f"update refs/{self.name} {new or nothing}",
            "prepare",
            "commit",
        ]
        self.git.run("update-ref", "--no-deref", "--stdin", given="\n".join(commands) + "\n")


@contextlib.contextmanager
def worktrees(git: Git, base: BaseCommit, *names: str) -> Iterator[dict[str, Path]]:
    """Yield worktrees at the base, by name. They are removed at the end, also after an error or an interrupt.

    Their repository reads the checkout's objects and settings and writes nothing there. Its branch `main`, with which
    upstream's scripts compare, points to the base, whatever the checkout's own `main` is.

    Raises:
        UpstreamError: no temporary folder or no worktree can be made.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix="ckpt_surgery-pr-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UpstreamError(
            f"no temporary folder could be made ({error.strerror or error}): make room, or set TMPDIR"
        ) from None
    folder = Path(temporary.name).resolve()
    try:
        repository = _repository(git, base, folder / "repository.git")
        paths = {name: folder / name for name in names}
        for path in paths.values():
            repository.run("worktree", "add", "--detach", "--quiet", str(path), base.sha)
        yield paths
    finally:
        temporary.cleanup()


def _repository(git: Git, base: BaseCommit, place: Path) -> Git:
    """Make an empty repository that borrows the checkout's objects."""
    common = (git.folder / git.run("rev-parse", "--git-common-dir")).resolve()
    objects = f"--object-format={git.run('rev-parse', '--show-object-format')}"
    git.run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", objects, str(place))
    repository = Git(place)
    (place / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n", encoding="utf-8")
    if (common / "shallow").is_file():
        shutil.copyfile(common / "shallow", place / "shallow")
    repository.run("config", "include.path", str(common / "config"))
    # the identity may depend on the path of the checkout (includeIf), so it is copied
    for person in ("author", "committer"):
        identity = _IDENTITY.fullmatch(git.run("var", f"GIT_{person.upper()}_IDENT"))
        for key, value in (identity.groupdict() if identity else {}).items():
            repository.run("config", f"{person}.{key}", value)
    repository.run("update-ref", "refs/heads/main", base.sha)
    return repository
