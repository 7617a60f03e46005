"""The command `apply`: its exit codes and output."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.cli.main import main
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.static.results import ApplyResult, FileChange
from tests.cli.stand_ins import INFO, PROBLEM, StandIn, applied, finding


@pytest.mark.parametrize(
    ("options", "unsafe", "write"),
    [([], False, True), (["--unsafe"], True, True), (["--diff"], False, False), (["--check"], False, False)],
)
def test_apply_writes_unless_it_only_shows(apply: StandIn, options: list[str], unsafe: bool, write: bool) -> None:
    main(["apply", "models", *options])
    assert apply.calls[0][0] == [Path("models")]
    assert (apply.options["unsafe"], apply.options["write"]) == (unsafe, write)


@pytest.mark.parametrize(
    ("result", "options", "code"),
    [
        (applied(), [], 0),
        (applied(left=(finding(Applicability.UNSAFE), INFO)), [], 0),
        (applied(left=(finding(),)), [], 1),
        (applied(written=False), ["--diff"], 0),
        (applied(written=False, left=(finding(),)), ["--diff"], 0),
        (applied(written=False), ["--check"], 1),
        (applied(written=False), ["--check", "--diff"], 1),
        (applied(changes=False, written=False), ["--check"], 0),
        (applied(problems=(PROBLEM,)), [], 2),
        (applied(written=False, problems=(PROBLEM,)), ["--check"], 2),
    ],
)
def test_the_exit_code(apply: StandIn, result: ApplyResult, options: list[str], code: int) -> None:
    apply.answer = result
    assert main(["apply", "models", *options]) == code


def test_apply_sums_up_and_names_the_files_it_would_change(apply: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    apply.answer = applied(notes=("m.py: a note",))
    main(["apply", "models"])
    assert capsys.readouterr().out.splitlines() == [
        "Changed 1 of 4 files in 0.5 s.",
        "  CKPT003 keyword_gradient: 1 repaired, none left",
        "Notes:",
        "  - m.py: a note",
    ]
    apply.answer = applied(written=False)
    main(["apply", "models", "--check"])
    assert capsys.readouterr().out.startswith("would change models/m.py\n")


def test_a_diff_is_alone_on_standard_output_with_its_line_endings(
    apply: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    apply.answer = applied(written=False)
    main(["apply", "models", "--diff"])
    captured = capsys.readouterr()
    assert captured.out == apply.answer.changes[0].diff
    assert "Would change 1 of 4 files" in captured.err
    change = FileChange("m.py", "a\r\nb\x0cc\n", "a\r\nd\x0cc\n", ("CKPT003",))
    apply.answer = ApplyResult((change,), (), (), (), (), 1, False, 0.1)
    main(["apply", "m.py", "--diff"])
    assert capsys.readouterr().out == change.diff
