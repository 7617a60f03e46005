"""The ends of a command: interrupts, errors and bugs are one line and an exit code."""

from __future__ import annotations

import signal

import pytest

from ckpt_surgery.cli.exits import Terminated, termination_raises
from ckpt_surgery.cli.main import main
from tests.cli.stand_ins import StandIn


def test_an_interrupt_is_one_line_and_130(apply: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    apply.error = KeyboardInterrupt()
    assert main(["apply", "models"]) == 130
    assert capsys.readouterr().err == "ckpt_surgery: interrupted; every file is whole, as it was or repaired\n"


def test_a_bug_is_one_line_and_shows_its_traceback_on_request(
    check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check.error = ZeroDivisionError("division\nby zero")
    assert main(["check"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "ckpt_surgery: error: ZeroDivisionError: division by zero: "
        "this is a bug in ckpt_surgery; CKPT_SURGERY_DEBUG=1 shows where\n"
    )
    monkeypatch.setenv("CKPT_SURGERY_DEBUG", "1")
    check.error = ZeroDivisionError("division by zero")
    assert main(["check"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def is_ended_by(number: int) -> bool:
    """Tell whether a signal ends the body of a command, by an exception that cleans up."""
    try:
        with termination_raises():
            signal.raise_signal(number)
    except Terminated:
        return True
    return False


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP on this system")
def test_a_hangup_ends_a_run_unless_ignored_as_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert not is_ended_by(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert is_ended_by(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
