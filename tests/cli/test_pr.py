"""The command `pr`: its options and exit codes, what it prints, and one clear line for each thing that goes wrong."""

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
from typing import Any

import pytest

from ckpt_surgery.cli import pr as pr_command
from ckpt_surgery.cli.main import main
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.evidence.results import Commit, Evidence, Ran, Row
from ckpt_surgery.upstream.run import prepare as preparing
from ckpt_surgery.upstream.run.prepare import Delivered, Outcome, Wishes
from tests.upstream import toy_checkout
from tests.upstream.run.test_git import state

ROW = Row("oak", "OakModel", "reentrant", ("recompute",), ())
COMMIT = Commit(
    "a" * 40, "Repair gradient checkpointing of oak", ("oak",), ("CKPT001",), ("oak.py",), Ran("import", 0)
)
EVIDENCE = Evidence(
    group="oak",
    branch="ckpt-surgery/oak",
    base="b" * 40,
    base_name="main",
    status="ready",
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
OAK = Delivered(EVIDENCE, Path("out/oak"), ("git log main..ckpt-surgery/oak", "gh pr create --draft"))


class Preparing:
    """Stands in for `prepare`: what it was asked, and what it is to answer."""

    def __init__(self) -> None:
        self.outcome = Outcome((OAK,), {}, {})
        self.work: Callable[[Callable[[Delivered], None]], object] = lambda finished: None
        self.checkout = Path()
        self.wishes = Wishes(Path())

    def __call__(
        self, checkout: Path, wishes: Wishes, *, finished: Callable[[Delivered], None], **_: object
    ) -> Outcome:
        self.checkout, self.wishes = checkout, wishes
        self.work(finished)
        return self.outcome


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Preparing:
    stand_in = Preparing()
    monkeypatch.setattr(preparing, "prepare", stand_in)
    return stand_in


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["pr", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# --- options ----------------------------------------------------------------------------------------------


def test_options_become_wishes(prepare: Preparing, capsys: pytest.CaptureFixture[str]) -> None:
    issue = "https://github.com/huggingface/transformers/issues/38635"
    options = ["--families", "gpt_bigcode, zamba", "--families", "zamba", "--select", "CKPT00", "--group-by", "all"]
    options += ["--out", "place", "--base", "trunk", "--python", "py", "--coordination", issue, "--jobs", "3"]
    said(capsys, "some/transformers", *options, "--include-unreproduced")
    assert prepare.checkout == Path("some/transformers")
    wishes = prepare.wishes
    assert (wishes.families, wishes.by, wishes.base) == (("gpt_bigcode", "zamba"), "all", "trunk")
    assert (wishes.out, wishes.python, wishes.coordination, wishes.jobs) == (Path("place"), Path("py"), issue, 3)
    assert wishes.codes == tuple(f"CKPT00{number}" for number in range(1, 10))
    assert wishes.include_unreproduced
    assert wishes.command == (
        f"ckpt_surgery pr transformers --families gpt_bigcode,zamba --select {','.join(wishes.codes)} "
        f"--group-by all --base trunk --include-unreproduced --coordination {issue}"
    )


def test_all_families_and_all_rules_are_the_widest_wish(
    prepare: Preparing, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "transformers", "--all")
    assert (prepare.wishes.families, prepare.wishes.by) == ((), "root")
    assert prepare.wishes.codes == ()
    assert prepare.wishes.command == "ckpt_surgery pr transformers --all --group-by root --base main"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no family is named: give --families"),
        (["--families", " , "], "no family is named"),
        (["--all", "--families", "oak"], "--all and --families exclude each other"),
        (["--all", "--select", "CKPT101"], "CKPT101"),
        (["--all", "--coordination", "https://github.com/me/transformers/issues/1"], "is no issue of upstream's"),
        (
            ["--all", "--coordination", "issue 12"],
            "--coordination issue 12 is no issue of upstream's: give its address",
        ),
    ],
    ids=["no family", "only commas", "both", "a rule for scripts", "an issue elsewhere", "no address"],
)
def test_bad_options_are_one_line(
    prepare: Preparing, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    code, out, err = said(capsys, "transformers", *options)
    assert (code, out) == (2, "")
    assert err.startswith("ckpt_surgery: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_jobs_may_stand_in_the_configuration(
    prepare: Preparing, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ckpt_surgery]\njobs = 3\n")
    monkeypatch.chdir(tmp_path)
    said(capsys, "transformers", "--all")
    assert prepare.wishes.jobs == 3
    said(capsys, "transformers", "--all", "--jobs", "1")
    assert prepare.wishes.jobs == 1


# --- what it prints ---------------------------------------------------------------------------------------


def test_a_finished_series_is_named_with_what_comes_next(
    prepare: Preparing, capsys: pytest.CaptureFixture[str]
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
        (Outcome((), {}, {}), 0, "Nothing to repair."),
        (Outcome((), {"elm": "no fault is seen"}, {}), 1, "Left out: elm\n  no fault is seen"),
        (Outcome((), {}, {"elm": "work for a person"}), 1, "Not repaired: elm\n  work for a person"),
        (Outcome((OAK,), {"elm": "why", "fir": "why"}, {}), 0, "Left out: elm, fir\n  why\n"),
        (Outcome((OAK, OAK), {}, {}), 0, "Next, for ckpt-surgery/oak, and likewise for each of the others:\n"),
    ],
    ids=["nothing", "left out", "no repair", "some", "several"],
)
def test_what_is_not_made_is_told(
    prepare: Preparing, capsys: pytest.CaptureFixture[str], outcome: Outcome, code: int, words: str
) -> None:
    prepare.outcome = outcome
    found, out, _ = said(capsys, "transformers", "--all")
    assert found == code
    assert words in out


@pytest.mark.parametrize(("status", "code"), [("ready", 0), ("unchecked", 0), ("not ready", 1)])
def test_a_series_that_is_not_ready_is_a_failure_with_its_reasons(
    prepare: Preparing, capsys: pytest.CaptureFixture[str], status: Any, code: int
) -> None:
    evidence = replace(EVIDENCE, status=status, reasons=("upstream's checker repo fails",))
    prepare.outcome = Outcome((replace(OAK, evidence=evidence, notice="body.md holds words of yours"),), {}, {})
    found, out, _ = said(capsys, "transformers", "--all")
    assert found == code
    assert f"ckpt-surgery/oak: {status} (" in out
    assert "\n  - upstream's checker repo fails\n  body.md holds words of yours\n" in out


def test_an_error_names_what_was_finished_before_it(prepare: Preparing, capsys: pytest.CaptureFixture[str]) -> None:
    def work(finished: Callable[[Delivered], None]) -> None:
        finished(OAK)
        raise UpstreamError("the disk is full; make room and run again")

    prepare.work = work
    code, out, err = said(capsys, "transformers", "--all")
    assert (code, out) == (2, "")
    assert err == (
        "finished and kept: ckpt-surgery/oak (out/oak)\n"
        "ckpt_surgery: error: the disk is full; make room and run again\n"
    )


def test_an_interrupt_says_what_is_as_it_was(prepare: Preparing, capsys: pytest.CaptureFixture[str]) -> None:
    def work(_: object) -> None:
        raise KeyboardInterrupt

    prepare.work = work
    code, _, err = said(capsys, "transformers", "--all")
    assert code == 130
    assert err == "ckpt_surgery: interrupted; the checkout is as it was; nothing was made\n"


# --- the real command, on a small checkout ----------------------------------------------------------------


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt_surgery", "pr", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("ckpt_surgery: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return toy_checkout.make(tmp_path / "transformers", generation="none")


def test_a_folder_that_is_no_repository(tmp_path: Path) -> None:
    assert "is not in a git repository" in refused(run(tmp_path, ".", "--all"))


def test_a_dirty_checkout(toy: Path) -> None:
    (toy / "setup.py").write_text("changed\n")
    assert "has changes that are not committed (setup.py)" in refused(run(toy.parent, "transformers", "--all"))


def test_a_detached_head_and_a_missing_base(toy: Path) -> None:
    assert "there is no commit 'trunk'" in refused(run(toy.parent, "transformers", "--all", "--base", "trunk"))
    toy_checkout.git(toy, "checkout", "--quiet", "--detach")
    assert "HEAD is detached" in refused(run(toy.parent, "transformers", "--all"))


def test_no_git(toy: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "git was not found" in refused(run(toy.parent, "transformers", "--all", PATH=str(empty)))


def test_an_interpreter_that_does_not_meet_the_pins(toy: Path) -> None:
    path = toy / "src" / "transformers" / "__init__.py"
    why = "tokenizers>=99 is required for a normal functioning of this module, but found tokenizers==1.0."
    path.write_text(f"raise ImportError({why!r})\n")
    toy_checkout.commit(toy, "A pin that nobody meets")
    message = refused(run(toy.parent, "transformers", "--all"))
    assert "tokenizers>=99" in message
    assert "pip install" in message


def test_an_interpreter_that_is_none(toy: Path) -> None:
    message = refused(run(toy.parent, "transformers", "--all", "--python", "nowhere/python"))
    assert "nowhere/python" in message


def test_a_place_inside_the_checkout(toy: Path) -> None:
    message = refused(run(toy, ".", "--all"))
    assert "lies in the checkout, which is never written to" in message


def test_a_family_that_is_not_there(toy: Path) -> None:
    assert "did you mean birch?" in refused(run(toy.parent, "transformers", "--families", "brich"))


def test_a_full_disk(toy: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    message = refused(run(toy.parent, "transformers", "--all", "--out", str(full / "out")))
    assert "--out /dev/full/out cannot be made" in message


def test_nothing_is_left_behind_by_any_refusal(toy: Path) -> None:
    before, known = state(toy), set(toy.parent.iterdir())
    for options in (["--base", "trunk"], ["--python", "nowhere"], ["--families", "brich"], ["--select", "CKPT9"]):
        refused(run(toy.parent, "transformers", *([] if "--families" in options else ["--all"]), *options))
    assert state(toy) == before
    assert set(toy.parent.iterdir()) == known


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
        command,
        cwd=toy.parent,
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
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
