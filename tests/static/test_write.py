"""A file is replaced as a whole or not at all, and no temporary file is left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckpt_surgery.static.write import write_atomically

BEFORE, AFTER = "a = 1\n", "a = 2\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(BEFORE)
    return path


def unchanged(file: Path, content: bytes = BEFORE.encode()) -> bool:
    return file.read_bytes() == content and os.listdir(file.parent) == [file.name]


def test_the_new_content_takes_the_place_of_the_old_and_the_mode_stays(file: Path) -> None:
    file.chmod(0o664)
    assert write_atomically(file, BEFORE, AFTER) is None
    assert unchanged(file, AFTER.encode())
    assert file.stat().st_mode & 0o777 == 0o664


def test_the_content_is_on_disk_before_it_takes_the_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        steps.append("fsync")
        fsync(handle)

    def noted_replace(source: str, target: str) -> None:
        steps.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    assert write_atomically(file, BEFORE, AFTER) is None
    assert steps == ["fsync", "replace"]


@pytest.mark.parametrize(
    ("before", "encoding", "bom"),
    [
        ("a = 1\r\nb = 'é'\r\n", "utf-8", False),
        ("a = 1\rb = 2\r\nc = 3\n", "utf-8", False),
        ("a = 'é'", "utf-8", True),
        ("# coding: latin-1\na = 'é'\n", "iso-8859-1", False),
    ],
)
def test_encoding_byte_order_mark_and_line_endings_stay(file: Path, before: str, encoding: str, bom: bool) -> None:
    mark = b"\xef\xbb\xbf" if bom else b""
    file.write_bytes(mark + before.encode(encoding))
    assert write_atomically(file, before, before.replace("a =", "a: int ="), encoding=encoding, bom=bom) is None
    assert unchanged(file, mark + before.replace("a =", "a: int =").encode(encoding))


def test_a_character_that_the_encoding_lacks_is_reported_and_the_file_left(file: Path) -> None:
    problem = write_atomically(file, BEFORE, "a = '→'\n", encoding="iso-8859-1")
    assert problem is not None
    assert "iso-8859-1 has no character '→'" in problem.message
    assert unchanged(file)


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "blob"
    real.write_text(BEFORE)
    link = tmp_path / "model.py"
    link.symlink_to("real/blob")
    assert write_atomically(link, BEFORE, AFTER) is None
    assert link.is_symlink()
    assert unchanged(real, AFTER.encode())


def test_a_file_that_changed_underneath_is_left_alone(file: Path) -> None:
    file.write_text("someone else's\n")
    problem = write_atomically(file, BEFORE, AFTER)
    assert str(problem) == f"{file}: left as it was: it changed on disk since it was read; run again"
    assert unchanged(file, b"someone else's\n")


def test_a_change_while_the_new_content_is_written_is_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def edited_meanwhile(handle: int) -> None:
        fsync(handle)
        file.write_text("edited\n")

    monkeypatch.setattr(os, "fsync", edited_meanwhile)
    problem = write_atomically(file, BEFORE, AFTER)
    assert problem is not None
    assert unchanged(file, b"edited\n")


def test_a_read_only_file_is_reported_and_left(file: Path) -> None:
    file.chmod(0o444)
    problem = write_atomically(file, BEFORE, AFTER)
    assert problem is not None
    assert "read-only" in problem.message
    assert unchanged(file)


def test_a_file_that_is_gone_is_reported_and_not_made_again(file: Path) -> None:
    file.unlink()
    problem = write_atomically(file, BEFORE, AFTER)
    assert problem is not None
    assert "no longer there" in problem.message
    assert os.listdir(file.parent) == []


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "its folder cannot be written to"),
        (errno.EIO, "it could not be written"),
    ],
)
def test_a_failing_disk_is_reported_and_leaves_the_file_and_no_other(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
    problem = write_atomically(file, BEFORE, AFTER)
    monkeypatch.undo()
    assert problem is not None
    assert said in problem.message
    assert unchanged(file)


@pytest.mark.parametrize("call", ["open", "fdopen", "fsync", "chmod", "replace"])
@pytest.mark.parametrize("after_the_call", [False, True])
def test_an_interrupt_at_any_step_leaves_a_whole_file_and_no_other(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str, after_the_call: bool
) -> None:
    real = getattr(os, call)

    def interrupted(*arguments: object) -> None:
        if after_the_call:
            real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, BEFORE, AFTER)
    monkeypatch.undo()
    assert unchanged(file, AFTER.encode() if (call, after_the_call) == ("replace", True) else BEFORE.encode())


def test_equal_content_is_not_written(file: Path) -> None:
    file.chmod(0o444)
    status = file.stat()
    assert write_atomically(file, BEFORE, BEFORE) is None
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
