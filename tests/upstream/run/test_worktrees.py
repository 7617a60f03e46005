"""Worktrees leave the checkout unchanged, and none is left behind."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.checkout import check_checkout
from ckpt_surgery.upstream.run.git import (
    Git,
)
from ckpt_surgery.upstream.run.worktrees import worktrees
from tests.upstream.git_toys import series, sh, state


def test_a_series_leaves_the_checkout_as_it_was(repository: Path) -> None:
    (repository / "notes.txt").write_text("mine\n")
    before = state(repository)
    series(repository)
    assert state(repository) == before


def test_the_callers_git_variables_lead_nowhere_else(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(repository)
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    series(repository)
    assert state(repository) == before


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
def test_no_worktree_is_left_however_the_work_ends(repository: Path, end: type[BaseException]) -> None:
    git = Git(repository)
    base, before = check_checkout(git, "main"), state(repository)
    kept: list[Path] = []

    def work(places: dict[str, Path]) -> None:
        kept.extend(places.values())
        (kept[0] / "junk").write_text("x")
        raise end

    with pytest.raises(end), worktrees(git, base, "base", "series") as places:
        work(places)
    assert not any(place.exists() for place in kept)
    assert not kept[0].parent.exists()
    assert state(repository) == before


def test_a_worktree_that_was_made_half_way_is_cleared_away(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = Git(repository)
    base, before = check_checkout(git, "main"), state(repository)
    run = Git.run

    def interrupted(self: Git, *arguments: str, **options: str) -> str:
        answer = run(self, *arguments, **options)  # type: ignore[arg-type]
        if arguments[:2] == ("worktree", "add"):
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(Git, "run", interrupted)
    with pytest.raises(KeyboardInterrupt), worktrees(git, base, "series"):
        pass
    assert state(repository) == before


def test_a_second_interrupt_does_not_stop_the_clearing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = Git(repository)
    base, before = check_checkout(git, "main"), state(repository)
    asks = Git.asks

    def impatient(self: Git, *arguments: str) -> str:
        if arguments[:2] == ("worktree", "remove"):
            signal.raise_signal(signal.SIGINT)
        return asks(self, *arguments)

    monkeypatch.setattr(Git, "asks", impatient)
    with pytest.raises(KeyboardInterrupt), worktrees(git, base, "base", "series"):
        raise KeyboardInterrupt
    assert state(repository) == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # from here on it is heard again


def test_a_temporary_folder_that_cannot_be_made_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = Git(repository)
    base = check_checkout(git, "main")
    monkeypatch.setattr(tempfile, "tempdir", str(repository / "nowhere"))
    with pytest.raises(UpstreamError, match="no temporary folder could be made"), worktrees(git, base, "series"):
        pass


def test_a_sparse_checkout_gives_whole_worktrees(repository: Path) -> None:
    (repository / "inner").mkdir()
    (repository / "inner" / "fir.py").write_text("fir = 1\n")
    sh(repository, "add", ".")
    sh(repository, "commit", "--quiet", "--message=second")
    sh(repository, "sparse-checkout", "set", "--no-cone", "/oak.py")
    git = Git(repository)
    with worktrees(git, check_checkout(git, "main"), "series") as places:
        assert (places["series"] / "inner" / "fir.py").is_file()
