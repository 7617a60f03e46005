"""Output on a terminal, in a pipe and on a full disk."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ckpt_surgery.cli import terminal
from ckpt_surgery.cli.main import main
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import CheckResult
from tests.cli.stand_ins import StandIn, checked, finding


class FakeTerminal:
    """A stream that claims to be a terminal, over one that is not."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def test_a_terminal_gets_colour_and_the_same_words(
    check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    check.answer = checked(finding())
    monkeypatch.setattr(sys, "stdout", FakeTerminal(sys.stdout))
    main(["check"])
    coloured = capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["check"])
    plain = capsys.readouterr().out
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert "CKPT003" in plain


def test_markup_in_a_message_is_printed_as_it_is(
    check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check.answer = checked(Finding("CKPT003", "m.py", 1, 1, "", "[bold]:smile:[/x]", Applicability.SAFE))
    monkeypatch.setattr(sys, "stdout", FakeTerminal(sys.stdout))
    assert main(["check"]) == 1
    assert "[bold]:smile:[/x]" in capsys.readouterr().out


def test_progress_is_drawn_on_standard_error_only_where_that_is_a_terminal(
    check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draws(paths: Any, **options: Any) -> CheckResult:
        for done in range(3):
            options["progress"]("read", done, 2)
        return checked()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("ckpt_surgery.static.check.check", draws)
    monkeypatch.setattr(sys, "stderr", FakeTerminal(sys.stderr))
    assert main(["check", "--output-format", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    assert "read" in captured.err
    with terminal.progress_bar() as progress:
        assert progress is not None
    with terminal.progress_bar(after=1000.0) as progress:
        assert progress is not None
        progress("patience", 1, 0)
    assert "patience" not in capsys.readouterr().err
    monkeypatch.undo()
    with terminal.progress_bar() as progress:
        assert progress is None


def test_a_reader_that_went_away_changes_no_exit_code_and_no_stderr(
    check: StandIn, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check.answer = checked(*(finding(line=line) for line in range(1, 2000)))
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["check"]) == 1
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_standard_output_is_one_line_and_2(
    check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["check"]) == 2
    assert capsys.readouterr().err == (
        "ckpt_surgery: error: standard output cannot be written to: No space left on device\n"
    )


def test_a_file_that_cannot_be_written_is_named_by_its_path_alone(tmp_path: Path) -> None:
    with pytest.raises(terminal.OutputError, match=f"^{tmp_path} cannot be written to: Is a directory$"):
        terminal.write_document("", tmp_path)  # it does not know which option named the file
