"""A text that differs from its snapshot fails and shows the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.snapshots import UPDATE, check_snapshot


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(UPDATE, raising=False)
    path = tmp_path / "page.md"
    path.write_text("one\ntwo\n")
    return path


def test_the_same_text_passes(snapshot: Path) -> None:
    check_snapshot("one\ntwo\n", snapshot)


@pytest.mark.parametrize("text", ["one\nthree\n", "one\r\nthree\r\n"])
def test_any_other_text_fails_and_the_lines_that_differ_are_shown(snapshot: Path, text: str) -> None:
    with pytest.raises(AssertionError, match=rf"-two\n\+three(.|\n)*{UPDATE}"):
        check_snapshot(text, snapshot)
    assert snapshot.read_text() == "one\ntwo\n"


def test_a_snapshot_is_written_when_asked(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UPDATE, "1")
    new = snapshot.parent / "folder" / "new.md"
    check_snapshot("new\n", new)
    assert new.read_text() == "new\n"
