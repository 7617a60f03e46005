"""The command `pr`: its options, exit codes and output, and one clear line for each failure."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_surgery.cli import pr as pr_command
from ckpt_surgery.cli.main import main
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import (
    CommandRun,
    Commit,
    Evidence,
    ModelRow,
    Reason,
    ReasonCode,
    SeriesStatus,
)
from ckpt_surgery.upstream.options import PrepareOptions
from ckpt_surgery.upstream.run import prepare as preparing
from ckpt_surgery.upstream.run.prepare import FinishedSeries, PrepareResult
from ckpt_surgery.upstream.run.series import NO_FAULT, NO_REPAIR
from tests.upstream import toy_checkout
from tests.upstream.git_toys import state

ROW = ModelRow("oak", "OakModel", "reentrant", ("recompute",), ())
COMMIT = Commit(
    "a" * 40, "Repair gradient checkpointing of oak", ("oak",), ("CKPT001",), ("oak.py",), CommandRun("import", 0)
)
EVIDENCE = Evidence(
    group="oak",
    branch="ckpt-surgery/oak",
    base="b" * 40,
    base_name="main",
    status=SeriesStatus.READY,
    reasons=(),
    commits=(COMMIT,),
    rows=(ROW, replace(ROW, mode="non_reentrant"), replace(ROW, model="OakModelForTrees", after=("recompute",))),
    checks=(),
    signatures=(),
    regressions=(),
    siblings=(),
    versions={},
    command="ckpt_surgery pr transformers --all",
)
OAK = FinishedSeries(EVIDENCE, Path("out/oak"), ("git log main..ckpt-surgery/oak", "gh pr create --draft"))


class StubPrepare:
    """A fake `prepare`: what it was asked for, and what it answers."""

    def __init__(self) -> None:
        self.outcome = PrepareResult((OAK,), {}, {})
        self.work: Callable[[Callable[[FinishedSeries], None]], object] = lambda finished: None
        self.checkout = Path()
        self.options = PrepareOptions(Path())

    def __call__(
        self, checkout: Path, options: PrepareOptions, *, finished: Callable[[FinishedSeries], None], **_: object
    ) -> PrepareResult:
        self.checkout, self.options = checkout, options
        self.work(finished)
        return self.outcome


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> StubPrepare:
    stand_in = StubPrepare()
    monkeypatch.setattr(preparing, "prepare", stand_in)
    return stand_in


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["pr", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# --- options ----------------------------------------------------------------------------------------------


def test_options_are_handed_on(prepare: StubPrepare, capsys: pytest.CaptureFixture[str]) -> None:
    issue = "https://github.com/huggingface/transformers/issues/38635"
    words = ["--families", "gpt_bigcode, zamba", "--families", "zamba", "--select", "CKPT00", "--group-by", "all"]
    words += ["--out", "place", "--base", "trunk", "--python", "py", "--coordination", issue, "--jobs", "3"]
    said(capsys, "some/transformers", *words, "--include-unreproduced")
    assert prepare.checkout == Path("some/transformers")
    options = prepare.options
    assert (options.families, options.group_by, options.base) == (("gpt_bigcode", "zamba"), "all", "trunk")
    assert (options.out, options.python, options.coordination, options.jobs) == (Path("place"), Path("py"), issue, 3)
    assert options.codes == tuple(f"CKPT00{number}" for number in range(1, 10))
    assert options.include_unreproduced
    assert options.command == (
        f"ckpt_surgery pr transformers --families gpt_bigcode,zamba --select {','.join(options.codes)} "
        f"--group-by all --base trunk --include-unreproduced --coordination {issue}"
    )
    said(capsys, "transformers", "--all")
    assert (prepare.options.families, prepare.options.group_by) == ((), "root")
    assert prepare.options.codes == ()
    assert prepare.options.command == "ckpt_surgery pr transformers --all --group-by root --base main"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no family is named: give --families"),
        (["--families", " , "], "no family is named"),
        (["--all", "--families", "oak"], "--all and --families exclude each other"),
        (["--all", "--select", "CKPT101"], "CKPT101"),
        (["--all", "--coordination", "https://github.com/me/transformers/issues/1"], "is not an issue of upstream's"),
        (
            ["--all", "--coordination", "issue 12"],
            "--coordination issue 12 is not an issue of upstream's: give its address",
        ),
    ],
    ids=["no family", "only commas", "both", "a rule for scripts", "an issue elsewhere", "no address"],
)
def test_bad_options_are_one_line(
    prepare: StubPrepare, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    code, out, err = said(capsys, "transformers", *options)
    assert (code, out) == (2, "")
    assert err.startswith("ckpt_surgery: error: ")
    assert words in err
    assert err.count("\n") == 1


# --- what it prints ---------------------------------------------------------------------------------------


def test_a_finished_series_is_named_with_what_comes_next(
    prepare: StubPrepare, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, "transformers", "--all")
    assert (code, err) == (0, "")
    assert out == (
        "ckpt-surgery/oak: ready (1 commit, 1 file, 1 class repaired); see out/oak/evidence.md\n"
        "\nNext, for ckpt-surgery/oak:\n  git log main..ckpt-surgery/oak\n  gh pr create --draft\n"
    )


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (PrepareResult((), {}, {}), 0, "Nothing to repair."),
        (PrepareResult((), {"elm": NO_FAULT}, {}), 1, f"Left out: elm\n  {NO_FAULT}"),
        (PrepareResult((), {}, {"elm": NO_REPAIR}), 1, f"Not repaired: elm\n  {NO_REPAIR}"),
        (PrepareResult((OAK,), {"elm": NO_FAULT, "fir": NO_FAULT}, {}), 0, f"Left out: elm, fir\n  {NO_FAULT}\n"),
        (PrepareResult((OAK, OAK), {}, {}), 0, "Next, for ckpt-surgery/oak, and likewise for each of the others:\n"),
    ],
    ids=["nothing", "left out", "no repair", "some", "several"],
)
def test_what_is_not_made_is_reported(
    prepare: StubPrepare, capsys: pytest.CaptureFixture[str], outcome: PrepareResult, code: int, words: str
) -> None:
    prepare.outcome = outcome
    exit_code, out, _ = said(capsys, "transformers", "--all")
    assert exit_code == code
    assert words in out


@pytest.mark.parametrize(
    ("status", "code"), [(SeriesStatus.READY, 0), (SeriesStatus.UNCHECKED, 0), (SeriesStatus.NOT_READY, 1)]
)
def test_a_series_that_is_not_ready_is_a_failure_with_its_reasons(
    prepare: StubPrepare, capsys: pytest.CaptureFixture[str], status: SeriesStatus, code: int
) -> None:
    evidence = replace(
        EVIDENCE, status=status, reasons=(Reason(ReasonCode.CHECKER_FAILED, "upstream's checker repo fails"),)
    )
    prepare.outcome = PrepareResult((replace(OAK, evidence=evidence, notice="body.md holds words of yours"),), {}, {})
    exit_code, out, _ = said(capsys, "transformers", "--all")
    assert exit_code == code
    assert f"ckpt-surgery/oak: {status} (" in out
    assert "\n  - upstream's checker repo fails\n  body.md holds words of yours\n" in out


def test_a_reason_that_series_share_is_listed_once_after_them(
    prepare: StubPrepare, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = Reason(ReasonCode.CHECKER_FAILED, "repo fails, on the base too")

    def series(group: str, *reasons: Reason) -> FinishedSeries:
        evidence = replace(EVIDENCE, group=group, branch=f"ckpt-surgery/{group}", reasons=reasons)
        return replace(OAK, evidence=evidence, folder=Path("out") / group)

    own = Reason(ReasonCode.CHECKER_FAILED, "upstream's checker inits fails")
    prepare.outcome = PrepareResult((series("oak", shared), series("elm", own, shared), series("fir")), {}, {})
    _, out, _ = said(capsys, "transformers", "--all")
    assert out.count(shared.text) == 1
    assert f"\nckpt-surgery/oak and ckpt-surgery/elm:\n  - {shared.text}\n" in out
    assert f"out/elm/evidence.md\n  - {own.text}\n" in out
    prepare.outcome = PrepareResult((series("oak", shared), series("fir")), {}, {})
    _, out, _ = said(capsys, "transformers", "--all")
    assert f"out/oak/evidence.md\n  - {shared.text}\nckpt-surgery/fir" in out


def test_an_error_names_what_was_finished_before_it(prepare: StubPrepare, capsys: pytest.CaptureFixture[str]) -> None:
    def work(finished: Callable[[FinishedSeries], None]) -> None:
        finished(OAK)
        raise UpstreamError("the disk is full; make room and run again")

    prepare.work = work
    code, out, err = said(capsys, "transformers", "--all")
    assert (code, out) == (2, "")
    assert err == (
        "finished and kept: ckpt-surgery/oak (out/oak)\n"
        "ckpt_surgery: error: the disk is full; make room and run again\n"
    )


# --- the real `prepare`, on a small checkout ---------------------------------------------------------------


class Command:
    """The command, run in this process from a folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys = capsys
        self.monkeypatch = monkeypatch

    def refused(self, folder: Path, *arguments: str) -> str:
        """Return the one line with which the command ends."""
        self.monkeypatch.chdir(folder)
        code, out, err = said(self.capsys, *arguments)
        assert (code, out) == (2, ""), err
        assert err.startswith("ckpt_surgery: error: ")
        assert err.count("\n") == 1
        return err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return toy_checkout.make(tmp_path / "transformers", generation="none")


def test_nothing_is_left_behind_by_any_refusal(command: Command, toy: Path) -> None:
    before, entries = state(toy), set(toy.parent.iterdir())
    for options, words in (
        ("--all --base trunk", "there is no commit 'trunk'"),
        ("--all --python nowhere/python", "nowhere/python"),
        ("--families brich", "did you mean birch?"),
        ("--all --select CKPT9", "CKPT9"),
    ):
        assert words in command.refused(toy.parent, "transformers", *options.split())
    assert state(toy) == before
    assert set(toy.parent.iterdir()) == entries


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["Ctrl-C", "SIGTERM", "a closed terminal"]
)
def test_an_interrupt_in_the_middle_leaves_nothing_behind(toy: Path, tmp_path: Path, number: signal.Signals) -> None:
    # the checkout's Python says that it has been started, and then takes its time
    python, started = toy / ".venv" / "bin" / "python", tmp_path / "started"
    shutil.copy(python, python.with_name("real"))
    python.write_text(f"#!/bin/sh\ntouch {started}\nsleep 600\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = state(toy)
    command = [sys.executable, "-m", "ckpt_surgery", "pr", "transformers", "--all"]
    process = subprocess.Popen(
        command, cwd=toy.parent, env={**os.environ, "TMPDIR": str(scratch)}, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 60
    while not started.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.count("\n") == 1
    assert "the checkout is as it was; nothing was made" in err
    assert state(toy) == before
    assert list(scratch.iterdir()) == []
    assert not (toy.parent / pr_command.OUT).exists()


def test_an_interrupt_says_what_is_as_it_was(prepare: StubPrepare, capsys: pytest.CaptureFixture[str]) -> None:
    def work(_: object) -> None:
        raise KeyboardInterrupt

    prepare.work = work
    code, _, err = said(capsys, "transformers", "--all")
    assert code == 130
    assert err == "ckpt_surgery: interrupted; the checkout is as it was; nothing was made\n"
