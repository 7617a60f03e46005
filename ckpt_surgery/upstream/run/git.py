"""git, as far as a patch series needs it: questions, worktrees of our own, commits and patches.

Nothing here writes to a checkout, an index or a branch of the user's. Dates and options are fixed, so that the same
input gives the same commits and the same patches.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ckpt_surgery.errors import UpstreamError

_SETTINGS = {
    "advice.detachedHead": "false",
    "apply.whitespace": "nowarn",
    "commit.gpgSign": "false",
    "core.autocrlf": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "core.sparseCheckout": "false",
    "filter.lfs.process": "",
    "filter.lfs.required": "false",
    "filter.lfs.smudge": "",
    "gc.auto": "0",
    "i18n.commitEncoding": "utf-8",
    "log.showSignature": "false",
    "maintenance.auto": "false",
}
"""What would run the user's hooks, ask for a signature, fetch large files, or make the outcome differ."""

_PATCH = [
    "--binary",
    "--diff-algorithm=myers",
    "--encoding=UTF-8",
    "--full-index",
    "--inter-hunk-context=0",
    "--no-add-header",
    "--no-attach",
    "--no-base",
    "--no-cc",
    "--no-color",
    "--no-cover-letter",
    "--no-ext-diff",
    "--no-notes",
    "--no-renames",
    "--no-signature",
    "--no-signoff",
    "--no-thread",
    "--no-to",
    "--numbered",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--subject-prefix=PATCH",
    "--suffix=.patch",
    "--unified=3",
    f"-O{os.devnull}",
]
_KEPT = re.compile(r"GIT_(CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|(AUTHOR|COMMITTER)_(NAME|EMAIL))$")
"""Of git's variables, those that say who the user is and how git is set; the others may name another repository."""
_FULL = "No space left on device"


class GitError(UpstreamError):
    """A git command that should have worked did not. The message is one sentence, with git's own reason."""


@dataclass(frozen=True, slots=True)
class Git:
    """git in one working tree. Raises UpstreamError where git is missing or refuses."""

    folder: Path

    def run(self, *arguments: str, given: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Standard output of one command, without the last line feed."""
        code, out, reason = self._run(arguments, given, env or {})
        if code:
            raise GitError(f"git {arguments[0]} failed in {self.folder}: {reason}")
        return out

    def asks(self, *arguments: str) -> str:
        """The same for a question whose answer may be no: empty then."""
        code, out, _ = self._run(arguments, None, {})
        return "" if code else out

    def listed(self, *arguments: str) -> list[str]:
        """The paths of a command that ends each with a zero byte."""
        return [path for path in self.run(*arguments).split("\0") if path]

    def _run(self, arguments: Sequence[str], given: str | None, env: Mapping[str, str]) -> tuple[int, str, str]:
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or _KEPT.match(name)}
        ours = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            done = subprocess.run(
                ["git", *settings, *arguments],
                cwd=self.folder,
                input=None if given is None else given.encode(),
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                env={**clean, **ours, **env},
                start_new_session=True,  # Ctrl-C ends us first, and never a commit half-way
                check=False,
            )
        except FileNotFoundError:
            if self.folder.is_dir():
                raise UpstreamError("git was not found: install it, then run this again") from None
            raise UpstreamError(f"{self.folder} is no folder: name a git checkout of transformers") from None
        words = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        telling = [line for line in words if line.startswith(("fatal: ", "error: "))] or words
        if any(_FULL in line for line in words):
            return done.returncode, "", "the disk is full; make room, or set TMPDIR, and run this again"
        reason = telling[-1].removeprefix("fatal: ").removeprefix("error: ") if telling else f"exit {done.returncode}"
        return done.returncode, done.stdout.decode(errors="surrogateescape").removesuffix("\n"), reason


@dataclass(frozen=True, slots=True)
class Base:
    """The commit that a series stands on: its name as given, its hash, and its committer date (ISO 8601)."""

    name: str
    sha: str
    date: str


def checked(git: Git, base: str) -> Base:
    """The base of a checkout that a series can be made for.

    Raises UpstreamError: no git repository or not its top, a dirty tree, a detached HEAD, no such base, no identity.
    """
    top = git.asks("rev-parse", "--show-toplevel")
    if not top:
        why = "is a bare repository" if git.asks("rev-parse", "--is-bare-repository") == "true" else ""
        reason = git._run(("rev-parse", "--show-toplevel"), None, {})[2]
        if not why and "not a git repository" not in reason:
            raise UpstreamError(f"git refuses to work in {git.folder}: {reason}")
        why = why or "is not in a git repository"
        raise UpstreamError(f"{git.folder} {why}: name a checkout made by git clone")
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
    meanings = (f"refs/heads/{base}", f"refs/remotes/{base}", base)  # a tag of the same name is not what is meant
    options = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    sha = next(filter(None, (git.asks(*options, f"{name}^{{commit}}") for name in meanings)), "")
    if not sha:
        known = git.run("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes").split("\n")
        near = next((name for name in known if name.endswith(f"/{base}")), "")
        near = near or next(iter(get_close_matches(base, known, n=1)), "")
        meant = f"did you mean --base {near}?" if near else "name the branch to build on with --base"
        raise UpstreamError(f"there is no commit {base!r} in {git.folder}: {meant}")
    code, _, reason = git._run(("var", "GIT_COMMITTER_IDENT"), None, {})
    if code or (not git.asks("config", "user.email") and "GIT_COMMITTER_EMAIL" not in os.environ):
        why = f" ({reason})" if code else ""
        raise UpstreamError(
            f"git does not know who makes the commits{why}: set user.name and user.email "
            "(git config --global user.email YOU@EXAMPLE.ORG)"
        )
    return Base(base, sha, git.run("show", "--no-patch", "--format=%cI", sha))


@contextlib.contextmanager
def worktrees(git: Git, base: Base, *names: str) -> Iterator[dict[str, Path]]:
    """Worktrees of our own at the base, in a temporary folder, by name. However this ends, none is left."""
    with _temporary() as folder:
        made: dict[str, Path] = {}
        try:
            for name in names:
                made[name] = folder / f"{folder.name}-{name}"  # git keeps its notes under the last part of the path
                git.run("worktree", "add", "--detach", "--quiet", str(made[name]), base.sha)
            yield made
        finally:
            with _undisturbed():
                for place in made.values():
                    _forget(git, place)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no second Ctrl-C stop the clearing away."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _forget(git: Git, place: Path) -> None:
    git.asks("worktree", "remove", "--force", "--force", str(place))
    # a worktree that was made half-way is none that git could remove
    notes = git.folder / git.asks("rev-parse", "--git-common-dir") / "worktrees" / place.name
    shutil.rmtree(notes, ignore_errors=True)


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="ckpt_surgery-pr-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UpstreamError(
            f"no temporary folder could be made ({error.strerror or error}): make room, or set TMPDIR"
        ) from None
    with folder as name:
        yield Path(name).resolve()


def changed_files(git: Git) -> list[str]:
    """The files of a worktree that differ from its commit, new ones too but for what Python compiled, sorted."""
    tracked = git.listed("diff", "--name-only", "--no-renames", "-z", "HEAD")
    return sorted({*tracked, *(name for name in untracked(git) if "__pycache__" not in name.split("/"))})


def untracked(git: Git) -> list[str]:
    """The files of a worktree that git neither knows nor ignores."""
    return git.listed("ls-files", "--others", "--exclude-standard", "-z")


def restore(git: Git, files: Sequence[str] = ()) -> None:
    """Put files of a worktree of ours back to its commit, all of them where none is named; new ones go."""
    if not files:
        git.run("reset", "--hard", "--quiet")
        git.run("clean", "-d", "--force", "--quiet")
        return
    known = set(git.listed("ls-files", "-z", "--", *files))
    if known:
        git.run("checkout", "--quiet", "HEAD", "--", *sorted(known))
    for name in set(files) - known:
        (git.folder / name).unlink(missing_ok=True)


def stage(git: Git, files: Sequence[str]) -> None:
    """Take these files of a worktree of ours, as they are now, into the next commit."""
    if files:
        git.run("add", "--all", "--", *files)


def unstage_rest(git: Git) -> None:
    """Put back what a worktree of ours has beside what is staged."""
    git.run("checkout", "--quiet", "--", ".")
    git.run("clean", "-d", "--force", "--quiet")


def commit(git: Git, base: Base, message: str) -> str:
    """Commit what is staged in a worktree of ours and return the hash. Every commit has the base's date."""
    dates = {"GIT_AUTHOR_DATE": base.date, "GIT_COMMITTER_DATE": base.date}
    git.run("commit", "--quiet", "--no-verify", "--cleanup=verbatim", "--file=-", given=message, env=dates)
    return git.run("rev-parse", "HEAD")


def patches(git: Git, base: Base, tip: str, folder: Path) -> tuple[str, ...]:
    """Write the commits after the base as patches to an absolute folder and return their file names in order."""
    written = git.run("format-patch", *_PATCH, f"--output-directory={folder}", f"{base.sha}..{tip}")
    return tuple(Path(line).name for line in written.split("\n") if line)


def same_after_am(git: Git, base: Base, tip: str, folder: Path, names: Sequence[str]) -> bool:
    """Whether `git am` of the patches on the base gives the tree of `tip`; `git` is a worktree of ours at the base."""
    try:
        git.run("am", "--quiet", "--keep-cr", "--no-3way", *(str(folder / name) for name in names))
        return git.run("rev-parse", "HEAD^{tree}") == git.run("rev-parse", f"{tip}^{{tree}}")
    except GitError:
        git.asks("am", "--abort")
        return False
    finally:
        git.run("reset", "--hard", "--quiet", base.sha)
