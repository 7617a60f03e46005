"""Worktrees leave the checkout unchanged, and none is left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.checkout import SeriesBranch, check_checkout, worktrees
from ckpt_surgery.upstream.run.git import Git
from tests.upstream.git_toys import BRANCH, series, sh, state


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


def test_main_is_the_base_in_them_whatever_it_is_in_the_checkout(repository: Path) -> None:
    first = sh(repository, "rev-parse", "HEAD").strip()
    sh(repository, "switch", "--quiet", "--create", "trunk")
    (repository / "oak.py").write_text("oak = 7\n")
    sh(repository, "commit", "--quiet", "--all", "--message=second")
    git = Git(repository)
    for name in ("trunk", "main"):
        base = check_checkout(git, name)
        with worktrees(git, base, "series") as places:
            assert sh(places["series"], "merge-base", "main", "HEAD").strip() == base.sha
            assert sh(places["series"], "branch", "--show-current") == ""
        assert (base.sha == first) == (name == "main")
    sh(repository, "branch", "--delete", "--force", "main")
    with worktrees(git, check_checkout(git, "trunk"), "series") as places:
        assert sh(places["series"], "log", "--format=%s", "main").split() == ["second", "first"]
    assert sh(repository, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/trunk"]


@pytest.mark.parametrize("kind", ["shallow", "linked"])
def test_a_shallow_and_a_linked_checkout_get_their_series(repository: Path, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "other"
    if kind == "linked":
        sh(repository, "worktree", "add", "--quiet", "-b", "other", str(place))
    else:
        sh(repository, "commit", "--quiet", "--allow-empty", "--message=second")
        sh(tmp_path, "clone", "--quiet", "--depth=1", repository.as_uri(), str(place))
        sh(place, "config", "user.name", "A Person")
        sh(place, "config", "user.email", "person@example.org")
    git, base, tip = series(place)
    SeriesBranch(git, BRANCH).set(tip)
    assert sh(place, "rev-list", "--count", f"{base.sha}..{BRANCH}").strip() == "1"
    assert sh(place, "show", f"{BRANCH}:oak.py") == "oak = 2\n"
    sh(place, "fsck", "--strict")


def test_a_temporary_folder_that_cannot_be_made_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = Git(repository)
    base = check_checkout(git, "main")
    monkeypatch.setattr(tempfile, "tempdir", str(repository / "nowhere"))
    with pytest.raises(UpstreamError, match="no temporary folder could be made"), worktrees(git, base, "series"):
        pass


def test_who_commits_may_depend_on_the_place_of_the_checkout(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sh(repository, "config", "--unset", "user.name")
    sh(repository, "config", "--unset", "user.email")
    (tmp_path / "here").write_text("[user]\nname = Here\nemail = here@example.org\n")
    (tmp_path / "settings").write_text(f'[includeIf "gitdir:{repository}/"]\npath = {tmp_path / "here"}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    _, _, tip = series(repository)
    assert sh(repository, "show", "--no-patch", "--format=%an %ae %cn %ce", tip).split() == [
        *("Here", "here@example.org"),
        *("Here", "here@example.org"),
    ]
