"""A checkout's requirements before anything is made, and the branch of a series, which never costs a commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.checkout import SeriesBranch, check_checkout
from ckpt_surgery.upstream.run.git import BaseCommit, Git
from ckpt_surgery.upstream.run.series import TRAILER
from tests.upstream.git_toys import BRANCH, series, sh


def refusal(folder: Path, base: str = "main") -> str:
    with pytest.raises(UpstreamError) as error:
        check_checkout(Git(folder), base)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_clean_checkout_gives_its_base(repository: Path) -> None:
    base = check_checkout(Git(repository), "main")
    assert base == BaseCommit("main", sh(repository, "rev-parse", "main").strip(), "2024-02-03T04:05:06+01:00")


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    assert "is not in a git repository: name a checkout made by git clone" in refusal(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "nowhere")


def test_a_folder_inside_a_checkout_is_refused(repository: Path) -> None:
    (repository / "inner").mkdir()
    assert f"is a folder inside the checkout {repository}" in refusal(repository / "inner")


def test_a_detached_head_is_refused(repository: Path) -> None:
    sh(repository, "checkout", "--quiet", "--detach")
    assert "HEAD is detached" in refusal(repository)


@pytest.mark.parametrize("staged", [False, True], ids=["in the tree", "in the index"])
def test_changes_that_are_not_committed_are_refused(repository: Path, staged: bool) -> None:
    (repository / "oak.py").write_text("oak = 3\n")
    if staged:
        sh(repository, "add", ".")
    assert "has changes that are not committed (oak.py)" in refusal(repository)


def test_a_file_that_git_does_not_know_is_no_hindrance(repository: Path) -> None:
    (repository / "notes.txt").write_text("mine\n")
    assert check_checkout(Git(repository), "main").name == "main"


def test_a_missing_base_is_refused_and_the_likely_one_named(repository: Path) -> None:
    sh(repository, "branch", "--move", "trunk")
    sh(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert "there is no commit 'main'" in refusal(repository)
    assert "did you mean --base origin/main?" in refusal(repository)
    assert "name the branch to build on with --base" in refusal(repository, "quite-another")
    assert "there is no commit '--all'" in refusal(repository, "--all")


def test_an_identity_that_git_does_not_know_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(repository.parent))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(repository.parent))
    sh(repository, "config", "--unset", "user.email")
    if Git(repository).asks("config", "user.email"):
        pytest.skip("this machine's own configuration of git names an identity")
    assert "git config --global user.email" in refusal(repository)


def test_git_that_is_missing_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert refusal(repository) == "git was not found: install it, then run this again"


# --- the branch ---


def test_a_branch_of_ours_is_replaced_and_found_again(repository: Path) -> None:
    git, _, tip = series(repository)
    SeriesBranch(git, BRANCH).set(tip)
    assert SeriesBranch(git, BRANCH).tip() == tip
    _, _, other = series(repository, "oak = 3\n")
    SeriesBranch(git, BRANCH).set(other)
    assert git.run("rev-parse", BRANCH) == other


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
    SeriesBranch(git, BRANCH).set(tip)
    sh(repository, "switch", "--quiet", BRANCH)
    sh(repository, *work)
    sh(repository, "switch", "--quiet", "main")
    human = git.run("rev-parse", BRANCH)
    with pytest.raises(UpstreamError, match=f"the branch {BRANCH} holds a commit that is not ours"):
        SeriesBranch(git, BRANCH).set(tip)
    assert git.run("rev-parse", BRANCH) == human


@pytest.mark.parametrize("before", [True, False], ids=["to what it was", "to nothing"])
def test_a_branch_is_put_back(repository: Path, before: bool) -> None:
    git, _, tip = series(repository)
    if before:
        SeriesBranch(git, BRANCH).set(tip)
    _, _, other = series(repository, "oak = 3\n")
    old = SeriesBranch(git, BRANCH).tip()
    SeriesBranch(git, BRANCH).set(other)
    SeriesBranch(git, BRANCH).put_back(other, old)
    assert SeriesBranch(git, BRANCH).tip() == old == (tip if before else "")
    SeriesBranch(git, BRANCH).put_back(other, old)
    assert SeriesBranch(git, BRANCH).tip() == old


def test_a_branch_that_is_checked_out_is_left_alone(repository: Path) -> None:
    git, _, tip = series(repository)
    SeriesBranch(git, BRANCH).set(tip)
    sh(repository, "switch", "--quiet", BRANCH)
    with pytest.raises(UpstreamError, match=f"the branch {BRANCH} is checked out in {repository}"):
        SeriesBranch(git, BRANCH).tip()
