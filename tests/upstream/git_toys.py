"""A small git repository and a series on it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ckpt_surgery.upstream.run.checkout import check_checkout, worktrees
from ckpt_surgery.upstream.run.git import BaseCommit, Git
from ckpt_surgery.upstream.run.series import TRAILER

BRANCH = "ckpt-surgery/oak"


MESSAGE = f"Repair oak\n\n{TRAILER} 0.1.0\n"


def sh(folder: Path, *arguments: str, **env: str) -> str:
    run = ["git", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(
        run, cwd=folder, env={**os.environ, **env}, check=True, capture_output=True, text=True
    ).stdout


def state(folder: Path) -> dict[str, bytes]:
    """Read every byte of a checkout that must stay: all but git's objects and compiled Python."""
    files = (path for path in folder.rglob("*") if path.is_file())
    kept = [path for path in files if ".git/objects" not in path.as_posix() and path.suffix != ".pyc"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def series(repository: Path, text: str = "oak = 2\n") -> tuple[Git, BaseCommit, str]:
    git = Git(repository)
    base = check_checkout(git, "main")
    with worktrees(git, base, "series") as places:
        tree = Git(places["series"])
        (tree.folder / "oak.py").write_text(text)
        tree.run("add", "oak.py")
        tip = tree.commit(base, MESSAGE)
        git.fetch(tree, tip)
    return git, base, tip
