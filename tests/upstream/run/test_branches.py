"""The branch of a series, which never costs a person's commit."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.branches import free_branch, put_back, set_branch
from ckpt_surgery.upstream.run.commit_message import TRAILER
from tests.upstream.git_toys import BRANCH, series, sh


def test_a_branch_of_ours_is_replaced_and_found_again(repository: Path) -> None:
    git, _, tip = series(repository)
    set_branch(git, BRANCH, tip)
    assert free_branch(git, BRANCH) == tip
    _, _, other = series(repository, "oak = 3\n")
    set_branch(git, BRANCH, other)
    assert git.run("rev-parse", BRANCH) == other


def test_a_branch_of_ours_on_an_older_base_is_replaced(repository: Path) -> None:
    git, _, tip = series(repository)
    set_branch(git, BRANCH, tip)
    (repository / "elm.py").write_text("elm = 2\n")
    sh(repository, "commit", "--quiet", "--all", "--message=second")
    _, _, other = series(repository)
    set_branch(git, BRANCH, other)
    assert git.run("rev-parse", BRANCH) == other != tip


@pytest.mark.parametrize(
    "work",
    [
        ("commit", "--quiet", "--allow-empty", "--message=mine"),
        ("commit", "--quiet", "--amend", "--no-edit", "--allow-empty"),
        ("commit", "--quiet", "--allow-empty", f"--message=mine\n\n{TRAILER} 0.1.0"),
        ("-c", "core.editor=true", "rebase", "--quiet", "--exec=git commit -q --amend -m other", "HEAD~1"),
        ("reset", "--quiet", "--hard", "main"),
    ],
    ids=["a commit", "an amended commit", "a commit with our trailer", "a rebase", "a reset"],
)
def test_a_branch_with_work_of_the_humans_is_never_overwritten(repository: Path, work: tuple[str, ...]) -> None:
    git, _, tip = series(repository)
    set_branch(git, BRANCH, tip)
    sh(repository, "switch", "--quiet", BRANCH)
    sh(repository, *work)
    sh(repository, "switch", "--quiet", "main")
    human = git.run("rev-parse", BRANCH)
    with pytest.raises(UpstreamError, match=f"the branch {BRANCH} holds a commit that is not ours"):
        set_branch(git, BRANCH, tip)
    assert git.run("rev-parse", BRANCH) == human


def test_an_amended_commit_with_the_dates_of_ours_is_the_humans(repository: Path) -> None:
    git, base, tip = series(repository)
    set_branch(git, BRANCH, tip)
    sh(repository, "switch", "--quiet", BRANCH)
    (repository / "oak.py").write_text("oak = 5\n")
    sh(repository, "commit", "--quiet", "--all", "--amend", "--no-edit", GIT_COMMITTER_DATE=base.date)
    sh(repository, "switch", "--quiet", "main")
    with pytest.raises(UpstreamError, match="holds a commit that is not ours"):
        free_branch(git, BRANCH)


def test_a_branch_that_is_another_by_name_only_is_refused(repository: Path) -> None:
    git, _, tip = series(repository)
    sh(repository, "symbolic-ref", f"refs/heads/{BRANCH}", "refs/heads/main")
    with pytest.raises(UpstreamError, match="is a symbolic ref"):
        set_branch(git, BRANCH, tip)
    assert git.run("rev-parse", "main") != tip


@pytest.mark.parametrize("other", ["ckpt-surgery", f"{BRANCH}/more"])
def test_a_branch_that_leaves_no_room_is_named(repository: Path, other: str) -> None:
    git, _, _ = series(repository)
    sh(repository, "branch", other)
    with pytest.raises(UpstreamError, match=f"the branch {other} leaves no room for {BRANCH}"):
        free_branch(git, BRANCH)


def test_a_branch_that_is_being_rebased_is_left_alone(repository: Path, tmp_path: Path) -> None:
    git, _, tip = series(repository)
    set_branch(git, BRANCH, tip)
    place = tmp_path / "other"
    sh(repository, "worktree", "add", "--quiet", str(place), BRANCH)
    with contextlib.suppress(subprocess.CalledProcessError):
        sh(place, "rebase", "--quiet", "--exec=false", "HEAD~1")
    with pytest.raises(UpstreamError, match="is being rebased"):
        free_branch(git, BRANCH)


@pytest.mark.parametrize("before", [True, False], ids=["to what it was", "to nothing"])
def test_a_branch_is_put_back(repository: Path, before: bool) -> None:
    git, _, tip = series(repository)
    if before:
        set_branch(git, BRANCH, tip)
    _, _, other = series(repository, "oak = 3\n")
    old = free_branch(git, BRANCH)
    set_branch(git, BRANCH, other)
    put_back(git, BRANCH, other, old)
    assert free_branch(git, BRANCH) == old == (tip if before else "")
    put_back(git, BRANCH, other, old)
    assert free_branch(git, BRANCH) == old


def test_a_branch_that_is_checked_out_is_left_alone(repository: Path) -> None:
    git, _, tip = series(repository)
    set_branch(git, BRANCH, tip)
    sh(repository, "switch", "--quiet", BRANCH)
    with pytest.raises(UpstreamError, match=f"the branch {BRANCH} is checked out in {repository}"):
        free_branch(git, BRANCH)
