"""Run git: read what a patch series needs to know, and make its commits and patches.

Nothing here changes a file, the index or a branch of the user's checkout. Dates and options are fixed, so that the
same input gives the same commits and patches.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
"""Overrides settings that would run the user's hooks, ask for a signature, fetch large files, or change the result."""

_PATCH = [
    "--binary",
    "--dst-prefix=b/",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-renames",
    "--no-signature",
    "--numbered",
    "--src-prefix=a/",
]
_NO_CONFIGURATION = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_KEPT = re.compile(r"GIT_(CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|(AUTHOR|COMMITTER)_(NAME|EMAIL))$")
"""The variables that are kept, for the user's identity and configuration: others may name another repository."""


class GitError(UpstreamError):
    """A git command failed. The message is one sentence that ends with git's own reason."""


@dataclass(frozen=True, slots=True)
class BaseCommit:
    """The base of a series: its name as given, its hash, and its committer date (ISO 8601)."""

    name: str
    sha: str
    date: str


@dataclass(frozen=True, slots=True)
class Git:
    """git in one working tree."""

    folder: Path

    def run(self, *arguments: str, given: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run one command and return its standard output without the last line feed.

        Args:
            given: text for its standard input.
            env: further environment variables.

        Raises:
            GitError: the command failed.
            UpstreamError: git is not installed, or there is no such folder.
        """
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or _KEPT.match(name)}
        ours = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        try:
            done = subprocess.run(
                ["git", *settings, *arguments],
                cwd=self.folder,
                input=(given or "").encode(),
                capture_output=True,
                env={**clean, **ours, **(env or {})},
                start_new_session=True,  # so that Ctrl-C does not end git in the middle of a commit
                check=False,
            )
        except FileNotFoundError:
            if self.folder.is_dir():
                raise UpstreamError("git was not found: install it, then run this again") from None
            raise UpstreamError(f"{self.folder} is not a folder: name a git checkout of transformers") from None
        if done.returncode:
            lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
            marked = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
            reason = re.sub("^(fatal|error): ", "", marked[-1]) if marked else f"exit code {done.returncode}"
            raise GitError(f"git {arguments[0]} failed in {self.folder}: {reason}")
        return done.stdout.decode(errors="surrogateescape").removesuffix("\n")

    def asks(self, *arguments: str) -> str:
        """Run a command that may fail, and return its output; empty if it fails."""
        try:
            return self.run(*arguments)
        except GitError:
            return ""

    def listed(self, *arguments: str) -> list[str]:
        """Run a command whose output is paths that each end with a zero byte, and return them."""
        return [path for path in self.run(*arguments).split("\0") if path]

    def changed_files(self) -> list[str]:
        """List the files that differ from the commit, including new ones, without compiled Python."""
        tracked = self.listed("diff", "--name-only", "--no-renames", "-z", "HEAD")
        return sorted({*tracked, *(name for name in self.untracked() if "__pycache__" not in name.split("/"))})

    def untracked(self) -> list[str]:
        """List the files that git neither tracks nor ignores."""
        return self.listed("ls-files", "--others", "--exclude-standard", "-z")

    def restore(self, files: Sequence[str] = ()) -> None:
        """Restore files to the commit, all if none is named, and remove new files. Only for our worktrees."""
        if not files:
            self.run("reset", "--hard", "--quiet")
            self.run("clean", "-d", "--force", "--quiet")
            return
        tracked = set(self.listed("ls-files", "-z", "--", *files))
        if tracked:
            self.run("checkout", "--quiet", "HEAD", "--", *sorted(tracked))
        for name in set(files) - tracked:
            (self.folder / name).unlink(missing_ok=True)

    def commit(self, base: BaseCommit, message: str) -> str:
        """Commit what is staged, with the base's date, and return the hash. Only for our worktrees."""
        dates = {"GIT_AUTHOR_DATE": base.date, "GIT_COMMITTER_DATE": base.date}
        self.run("commit", "--quiet", "--no-verify", "--cleanup=verbatim", "--file=-", given=message, env=dates)
        return self.run("rev-parse", "HEAD")

    def fetch(self, tree: Git, tip: str) -> None:
        """Fetch a commit from one of our worktrees into this checkout, without changing a ref here."""
        tree.run("update-ref", "refs/heads/finished", tip)
        quiet = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        self.run("fetch", *quiet, str(tree.folder), "refs/heads/finished")

    def patches(self, base: BaseCommit, tip: str, folder: Path) -> tuple[str, ...]:
        """Write the commits after the base as patches to an absolute folder and return their file names in order.

        The user's configuration of git does not change them.
        """
        options = [*_PATCH, f"--output-directory={folder}"]
        written = self.run("format-patch", *options, f"{base.sha}..{tip}", env=_NO_CONFIGURATION)
        return tuple(Path(line).name for line in written.split("\n") if line)

    def same_after_am(self, base: BaseCommit, tip: str, folder: Path, names: Sequence[str]) -> bool:
        """Tell whether `git am` of the patches gives the tree of `tip`. Only for our worktree at the base."""
        try:
            self.run("am", "--quiet", "--keep-cr", "--no-3way", *(str(folder / name) for name in names))
            return self.run("rev-parse", "HEAD^{tree}") == self.run("rev-parse", f"{tip}^{{tree}}")
        except GitError:
            self.asks("am", "--abort")
            return False
        finally:
            self.run("reset", "--hard", "--quiet", base.sha)
