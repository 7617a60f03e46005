"""What is refused before anything is made, what is never touched, and that the same input gives the same commits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.plan.message import TRAILER
from ckpt_surgery.upstream.run.branches import free_branch, put_back, set_branch
from ckpt_surgery.upstream.run.git import (
    Base,
    Git,
    GitError,
    changed_files,
    checked,
    commit,
    patches,
    restore,
    same_after_am,
    stage,
    unstage_rest,
    worktrees,
)

BRANCH = "ckpt-surgery/oak"
MESSAGE = f"Repair oak\n\n{TRAILER} 0.1.0\n"


def sh(folder: Path, *arguments: str, **env: str) -> str:
    run = ["git", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(
        run, cwd=folder, env={**os.environ, **env}, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    sh(folder, "init", "--quiet", "--initial-branch=main")
    sh(folder, "config", "user.name", "A Person")
    sh(folder, "config", "user.email", "person@example.org")
    (folder / "oak.py").write_text("oak = 1\n")
    (folder / "elm.py").write_text("elm = 1\n")
    sh(folder, "add", ".")
    sh(folder, "commit", "--quiet", "--message=first", GIT_COMMITTER_DATE="2024-02-03T04:05:06+01:00")
    return folder


def state(folder: Path) -> dict[str, bytes]:
    """Every byte of a checkout but git's objects and what Python compiled: what must stay as it is."""
    files = (path for path in folder.rglob("*") if path.is_file())
    kept = [path for path in files if ".git/objects" not in path.as_posix() and path.suffix != ".pyc"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def series(repository: Path, text: str = "oak = 2\n") -> tuple[Git, Base, str]:
    git = Git(repository)
    base = checked(git, "main")
    with worktrees(git, base, "series") as places:
        tree = Git(places["series"])
        (tree.folder / "oak.py").write_text(text)
        stage(tree, ["oak.py"])
        tip = commit(tree, base, MESSAGE)
    return git, base, tip


def refusal(folder: Path, base: str = "main") -> str:
    with pytest.raises(UpstreamError) as error:
        checked(Git(folder), base)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what is refused --------------------------------------------------------------------------------------


def test_a_clean_checkout_gives_its_base(repository: Path) -> None:
    base = checked(Git(repository), "main")
    assert base == Base("main", sh(repository, "rev-parse", "main").strip(), "2024-02-03T04:05:06+01:00")


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    assert "is not in a git repository: name a checkout made by git clone" in refusal(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "is no folder" in refusal(tmp_path / "nowhere")


def test_a_bare_repository_is_refused(repository: Path, tmp_path: Path) -> None:
    sh(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare")
    assert "is a bare repository" in refusal(tmp_path / "bare")


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
    assert checked(Git(repository), "main").name == "main"


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


def test_git_that_is_missing_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert refusal(repository) == "git was not found: install it, then run this again"


def test_a_failing_command_is_one_sentence_with_gits_reason(repository: Path) -> None:
    with pytest.raises(GitError, match=r"^git rev-parse failed in .*: Needed a single revision$"):
        Git(repository).run("rev-parse", "--verify", "nothing")


# --- worktrees --------------------------------------------------------------------------------------------


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


def test_no_hook_of_the_users_runs(repository: Path) -> None:
    hook = '#!/bin/sh\ntouch "$(git rev-parse --git-common-dir)/ran-$(basename $0)"\nexit 1\n'
    for name in ("pre-commit", "commit-msg", "post-checkout", "post-commit", "reference-transaction"):
        path = repository / ".git" / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(hook)
        path.chmod(0o755)
    before = state(repository)
    git, _, tip = series(repository)
    assert state(repository) == before
    set_branch(git, BRANCH, tip)
    assert not list((repository / ".git").glob("ran-*"))


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
def test_no_worktree_is_left_however_the_work_ends(repository: Path, end: type[BaseException]) -> None:
    git = Git(repository)
    base, before = checked(git, "main"), state(repository)
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
    base, before = checked(git, "main"), state(repository)
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
    base, before = checked(git, "main"), state(repository)
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
    base = checked(git, "main")
    monkeypatch.setattr(tempfile, "tempdir", str(repository / "nowhere"))
    with pytest.raises(UpstreamError, match="no temporary folder could be made"), worktrees(git, base, "series"):
        pass


def test_changed_files_are_seen_and_put_back(repository: Path) -> None:
    git = Git(repository)
    with worktrees(git, checked(git, "main"), "series") as places:
        tree = Git(places["series"])
        (tree.folder / "oak.py").write_text("oak = 2\n")
        (tree.folder / "elm.py").unlink()
        (tree.folder / "fir.py").write_text("fir = 1\n")
        assert changed_files(tree) == ["elm.py", "fir.py", "oak.py"]
        restore(tree, ["fir.py", "elm.py"])
        assert changed_files(tree) == ["oak.py"]
        (tree.folder / "fir.py").write_text("fir = 1\n")
        restore(tree)
        assert changed_files(tree) == []
        assert (tree.folder / "oak.py").read_text() == "oak = 1\n"


# --- commits, patches, branches ---------------------------------------------------------------------------


def test_the_same_input_gives_the_same_commit(repository: Path) -> None:
    _, _, first = series(repository)
    _, _, again = series(repository)
    _, _, other = series(repository, "oak = 3\n")
    assert first == again != other


def test_a_commit_is_the_persons_with_the_date_of_the_base(repository: Path) -> None:
    _, base, tip = series(repository)
    shown = sh(repository, "show", "--no-patch", "--format=%an|%ae|%aI|%cI|%B", tip)
    assert shown.strip() == f"A Person|person@example.org|{base.date}|{base.date}|{MESSAGE}".strip()


@pytest.mark.parametrize("setting", ["diff.noprefix", "diff.mnemonicPrefix", "format.attach", "format.signOff"])
def test_patches_apply_and_are_the_same_whatever_git_is_set_to(repository: Path, tmp_path: Path, setting: str) -> None:
    git, base, tip = series(repository)
    (name,) = patches(git, base, tip, tmp_path / "plain")
    sh(repository, "config", setting, "true")
    assert patches(git, base, tip, tmp_path / "set") == (name,)
    assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "set" / name).read_bytes()
    sh(repository, "am", "--quiet", str(tmp_path / "plain" / name))
    assert sh(repository, "rev-parse", "HEAD^{tree}") == sh(repository, "rev-parse", f"{tip}^{{tree}}")


def test_a_patch_that_does_not_give_the_tree_is_noticed(repository: Path, tmp_path: Path) -> None:
    git, base, tip = series(repository)
    names = patches(git, base, tip, tmp_path)
    with worktrees(git, base, "base") as places:
        tree = Git(places["base"])
        assert same_after_am(tree, base, tip, tmp_path, names)
        text = (tmp_path / names[0]).read_text()
        (tmp_path / names[0]).write_text(text.replace("+oak = 2", "+oak = 4"))
        assert not same_after_am(tree, base, tip, tmp_path, names)
        (tmp_path / names[0]).write_text(text.replace("-oak = 1", "-oak = 9"))
        assert not same_after_am(tree, base, tip, tmp_path, names)
        assert tree.run("rev-parse", "HEAD") == base.sha
        assert changed_files(tree) == []


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


def test_what_is_not_staged_is_not_committed(repository: Path) -> None:
    git = Git(repository)
    base = checked(git, "main")
    with worktrees(git, base, "series") as places:
        tree = Git(places["series"])
        (tree.folder / "oak.py").write_text("oak = 2\n")
        stage(tree, ["oak.py"])
        (tree.folder / "oak.py").write_text("oak = 9\n")
        (tree.folder / "elm.py").write_text("elm = 9\n")
        (tree.folder / "left.txt").write_text("by a test\n")
        unstage_rest(tree)
        tip = commit(tree, base, MESSAGE)
        assert changed_files(tree) == []
    assert sh(repository, "diff", "--name-only", "main", tip).split() == ["oak.py"]
    assert sh(repository, "show", f"{tip}:oak.py") == "oak = 2\n"


def test_who_commits_is_who_git_says_it_is(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sh(repository, "config", "--unset", "user.name")
    sh(repository, "config", "--unset", "user.email")
    (tmp_path / "settings").write_text("[user]\nname = Right\nemail = right@example.org\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    _, _, tip = series(repository)
    assert sh(repository, "show", "--no-patch", "--format=%an %ae", tip).strip() == "Right right@example.org"


def test_a_sparse_checkout_gives_whole_worktrees(repository: Path) -> None:
    (repository / "inner").mkdir()
    (repository / "inner" / "fir.py").write_text("fir = 1\n")
    sh(repository, "add", ".")
    sh(repository, "commit", "--quiet", "--message=second")
    sh(repository, "sparse-checkout", "set", "--no-cone", "/oak.py")
    git = Git(repository)
    with worktrees(git, checked(git, "main"), "series") as places:
        assert (places["series"] / "inner" / "fir.py").is_file()


def test_a_branch_that_is_checked_out_is_left_alone(repository: Path) -> None:
    git, _, tip = series(repository)
    set_branch(git, BRANCH, tip)
    sh(repository, "switch", "--quiet", BRANCH)
    with pytest.raises(UpstreamError, match=f"the branch {BRANCH} is checked out in {repository}"):
        free_branch(git, BRANCH)
