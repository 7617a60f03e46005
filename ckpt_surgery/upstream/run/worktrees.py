"""Worktrees of a repository of our own, in a temporary folder, of which nothing is left behind."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.git import BaseCommit, Git

_IDENTITY = re.compile(r"(?P<name>.*) <(?P<email>.*)> \d+ [+-]\d+")


@contextlib.contextmanager
def worktrees(git: Git, base: BaseCommit, *names: str) -> Iterator[dict[str, Path]]:
    """Give worktrees at the base, by name. They are removed at the end, also after an error or an interrupt.

    Their repository reads the checkout's objects and settings and writes nothing there. Its branch `main`, with which
    upstream's scripts compare, is the base, whatever the checkout's own `main` is.

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
    """Make an empty repository that finds the checkout's objects in the checkout."""
    common = (git.folder / git.run("rev-parse", "--git-common-dir")).resolve()
    objects = f"--object-format={git.run('rev-parse', '--show-object-format')}"
    git.run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", objects, str(place))
    repository = Git(place)
    (place / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n", encoding="utf-8")
    if (common / "shallow").is_file():
        shutil.copyfile(common / "shallow", place / "shallow")
    repository.run("config", "include.path", str(common / "config"))
    # who commits may depend on where the checkout is (includeIf)
    for person in ("author", "committer"):
        identity = _IDENTITY.fullmatch(git.run("var", f"GIT_{person.upper()}_IDENT"))
        for key, value in (identity.groupdict() if identity else {}).items():
            repository.run("config", f"{person}.{key}", value)
    repository.run("update-ref", "refs/heads/main", base.sha)
    return repository
