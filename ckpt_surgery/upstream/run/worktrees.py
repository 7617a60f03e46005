"""Worktrees of our own, in a temporary folder, of which none is left behind."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.git import BaseCommit, Git


@contextlib.contextmanager
def worktrees(git: Git, base: BaseCommit, *names: str) -> Iterator[dict[str, Path]]:
    """Worktrees at the base, by name. They are removed at the end, also after an error or an interrupt.

    Raises UpstreamError if no temporary folder or no worktree can be made.
    """
    with _temporary_folder() as folder:
        paths: dict[str, Path] = {}
        try:
            for name in names:
                paths[name] = folder / f"{folder.name}-{name}"  # git keeps its data under the last part of the path
                git.run("worktree", "add", "--detach", "--quiet", str(paths[name]), base.sha)
            yield paths
        finally:
            with _interrupts_ignored():
                for path in paths.values():
                    _remove(git, path)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Lets no second Ctrl-C stop the cleanup."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _remove(git: Git, path: Path) -> None:
    git.asks("worktree", "remove", "--force", "--force", str(path))
    # git cannot remove a worktree that it has only begun to make
    data = git.folder / git.asks("rev-parse", "--git-common-dir") / "worktrees" / path.name
    shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="ckpt_surgery-pr-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UpstreamError(
            f"no temporary folder could be made ({error.strerror or error}): make room, or set TMPDIR"
        ) from None
    with folder as name:
        yield Path(name).resolve()
