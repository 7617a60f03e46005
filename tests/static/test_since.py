"""The lines that git reports as changed, and the errors if git cannot be asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.errors import OptionError
from ckpt_surgery.static.since import ChangedLines


def git(folder: Path, *arguments: str) -> None:
    user = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgSign=false"]
    subprocess.run(["git", "-C", str(folder), *user, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "r").mkdir()
    git(tmp_path / "r", "init", "-q")
    git(tmp_path / "r", "config", "diff.renames", "false")
    write(tmp_path / "r", "m.py", *(f"line {number}" for number in range(1, 9)))
    write(tmp_path / "r", "old name.py", "a", "b")
    git(tmp_path / "r", "add", ".")
    git(tmp_path / "r", "commit", "-qm", "first")
    return tmp_path / "r"


def write(folder: Path, name: str, *lines: str) -> None:
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def covered(folder: Path, name: str, revision: str = "HEAD", before: int = 0) -> list[int]:
    """Return the lines on which a finding is reported whose statement begins that many lines earlier."""
    changed = ChangedLines.since([folder], revision)
    found = {
        line: Finding("CKPT001", str(folder / name), line, 1, "", "", Applicability.SAFE, first_line=line - before)
        for line in range(1, 11)
    }
    return [line for line, finding in found.items() if changed.cover(finding)]


def test_changed_and_added_lines_count_and_removed_ones_do_not(repository: Path) -> None:
    write(
        repository, "m.py", "line 1", "other", "line 3", "line 5", "line 6", "++ b/old name.py", "new", "line 7", "8"
    )
    assert covered(repository, "m.py") == [2, 6, 7, 9]
    assert covered(repository, "m.py", before=1) == [2, 3, 6, 7, 8, 9, 10]
    assert covered(repository, "old name.py") == []


def test_only_what_was_changed_or_added_counts(repository: Path) -> None:
    write(repository, "m.py", *(f"line {number}" for number in range(1, 9) if number != 4))
    assert covered(repository, "m.py", before=1) == []
    (repository / "m.py").write_text("line 1\n++ b/old name.py", encoding="utf-8")
    assert covered(repository, "m.py") == [2]


def test_what_was_committed_since_counts_too(repository: Path) -> None:
    write(repository, "m.py", "first", *(f"line {number}" for number in range(2, 9)))
    git(repository, "commit", "-qam", "second")
    assert covered(repository, "m.py") == []
    assert covered(repository, "m.py", "HEAD~1") == [1]


def test_a_new_file_counts_whole_and_a_renamed_one_does_not(repository: Path) -> None:
    write(repository, "new.py", "a")
    (repository / "old name.py").rename(repository / "sub é.py")
    git(repository, "add", "sub é.py", "old name.py")
    assert covered(repository, "new.py") == [*range(1, 11)]
    assert covered(repository, "sub é.py") == []
    write(repository, "sub é.py", "a", "c")
    assert 2 in covered(repository, "sub é.py")


def test_one_sentence_says_why_git_cannot_tell(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for revision in ("v9", "--all", ""):
        with pytest.raises(OptionError, match=f"has no revision '{revision}'"):
            ChangedLines.since([repository / "m.py"], revision)
    with pytest.raises(OptionError, match="is in no git repository"):
        ChangedLines.since([tmp_path], "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match="git cannot be run"):
        ChangedLines.since([repository], "HEAD")
