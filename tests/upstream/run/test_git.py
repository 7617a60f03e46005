"""The user's files are untouched, and the same input gives the same commits and patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.upstream.run.checkout import SeriesBranch, check_checkout, worktrees
from ckpt_surgery.upstream.run.git import Git, GitError
from tests.upstream.git_toys import BRANCH, MESSAGE, series, sh, state


def test_a_failing_command_is_one_sentence_with_gits_reason(repository: Path) -> None:
    with pytest.raises(GitError, match=r"^git rev-parse failed in .*: Needed a single revision$"):
        Git(repository).run("rev-parse", "--verify", "nothing")


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
    SeriesBranch(git, BRANCH).set(tip)
    assert not list((repository / ".git").glob("ran-*"))


def test_changed_files_are_seen_and_put_back(repository: Path) -> None:
    git = Git(repository)
    with worktrees(git, check_checkout(git, "main"), "series") as places:
        tree = Git(places["series"])
        (tree.folder / "oak.py").write_text("oak = 2\n")
        (tree.folder / "elm.py").unlink()
        (tree.folder / "fir.py").write_text("fir = 1\n")
        assert tree.changed_files() == ["elm.py", "fir.py", "oak.py"]
        tree.restore(["fir.py", "elm.py"])
        assert tree.changed_files() == ["oak.py"]
        (tree.folder / "fir.py").write_text("fir = 1\n")
        tree.restore()
        assert tree.changed_files() == []
        assert (tree.folder / "oak.py").read_text() == "oak = 1\n"


def test_a_commit_is_the_persons_with_the_date_of_the_base(repository: Path) -> None:
    _, base, tip = series(repository)
    shown = sh(repository, "show", "--no-patch", "--format=%an|%ae|%aI|%cI|%B", tip)
    assert shown.strip() == f"A Person|person@example.org|{base.date}|{base.date}|{MESSAGE}".strip()


@pytest.mark.parametrize("setting", ["diff.noprefix", "diff.mnemonicPrefix", "format.attach", "format.signOff"])
def test_patches_apply_and_are_the_same_whatever_git_is_set_to(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    git, base, tip = series(repository)
    (name,) = git.patches(base, tip, tmp_path / "plain")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    sh(repository, "config", "--global", setting, "true")
    assert git.patches(base, tip, tmp_path / "set") == (name,)
    assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "set" / name).read_bytes()
    sh(repository, "am", "--quiet", str(tmp_path / "plain" / name))
    assert sh(repository, "rev-parse", "HEAD^{tree}") == sh(repository, "rev-parse", f"{tip}^{{tree}}")


def test_a_patch_that_does_not_give_the_tree_is_noticed(repository: Path, tmp_path: Path) -> None:
    git, base, tip = series(repository)
    names = git.patches(base, tip, tmp_path)
    with worktrees(git, base, "base") as places:
        tree = Git(places["base"])
        assert tree.same_after_am(base, tip, tmp_path, names)
        text = (tmp_path / names[0]).read_text()
        (tmp_path / names[0]).write_text(text.replace("+oak = 2", "+oak = 4"))
        assert not tree.same_after_am(base, tip, tmp_path, names)
        (tmp_path / names[0]).write_text(text.replace("-oak = 1", "-oak = 9"))
        assert not tree.same_after_am(base, tip, tmp_path, names)
        assert tree.run("rev-parse", "HEAD") == base.sha
        assert tree.changed_files() == []
