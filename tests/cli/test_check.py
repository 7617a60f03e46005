"""The command `check`: its exit codes and output."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_surgery.cli.main import main
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.results import CheckResult
from tests.cli.stand_ins import INFO, PROBLEM, UNKNOWN, StandIn, checked, configure, finding


@pytest.mark.parametrize(
    ("result", "options", "code"),
    [
        (checked(), [], 0),
        (checked(INFO, UNKNOWN), ["--show-info", "--show-unknown"], 0),
        (checked(finding()), [], 1),
        (checked(finding(Applicability.UNSAFE)), [], 1),
        (checked(finding()), ["--exit-zero"], 0),
        (checked(finding()), ["--statistics"], 1),
        (checked(finding()), ["--output-format", "json"], 1),
        (checked(problems=(PROBLEM,)), [], 2),
        (checked(finding(), problems=(PROBLEM,)), ["--exit-zero"], 2),
    ],
)
def test_the_exit_code(check: StandIn, result: CheckResult, options: list[str], code: int) -> None:
    check.answer = result
    assert main(["check", *options]) == code


def test_problems_and_empty_places_are_lines_on_standard_error(
    check: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    check.answer = checked(finding(), problems=(PROBLEM,))
    main(["check"])
    captured = capsys.readouterr()
    assert captured.err == "error: models/broken.py: does not parse\n"
    assert "models/m.py\n  3:5 CKPT003" in captured.out
    check.answer = checked(files=0)
    assert main(["check", "empty"]) == 0
    assert "no Python file to check" in capsys.readouterr().err


def test_text_hides_info_and_unknown_and_says_so(check: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    check.answer = checked(finding(), INFO, UNKNOWN)
    main(["check"])
    out = capsys.readouterr().out
    assert "  3:5" in out
    assert "  7:5" not in out
    assert "Not shown: 1 info (--show-info), 1 unknown (--show-unknown)." in out
    assert "\x1b" not in out


@pytest.mark.parametrize("how", ["option", "configuration"])
def test_unknown_is_shown_by_option_or_configuration(
    check: StandIn, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    check.answer = checked(UNKNOWN)
    if how == "configuration":
        configure("show-unknown = true")
    main(["check", *(["--show-unknown"] if how == "option" else [])])
    assert "  9:5" in capsys.readouterr().out
    main(["check", "--no-show-unknown"])
    assert "  9:5" not in capsys.readouterr().out


def test_statistics_replace_the_findings(check: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    check.answer = checked(finding(), finding(line=4))
    main(["check", "--statistics"])
    out = capsys.readouterr().out
    assert "2  CKPT003 keyword_gradient (2 safe): One line." in out
    assert "  3:5" not in out


@pytest.mark.parametrize("output_format", ["json", "sarif"])
def test_standard_output_carries_the_machine_document_alone(
    check: StandIn, capsys: pytest.CaptureFixture[str], output_format: str
) -> None:
    check.answer = checked(finding(), problems=(PROBLEM,))
    main(["check", "--output-format", output_format, "--statistics"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    assert "Checked 4 files" in captured.err
    assert "keyword_gradient (1 safe)" in captured.err


@pytest.mark.parametrize("output_format", ["text", "sarif"])
def test_output_goes_to_the_file_and_equals_what_would_be_printed(
    check: StandIn, capsys: pytest.CaptureFixture[str], output_format: str
) -> None:
    check.answer = checked(finding())
    main(["check", "--output-format", output_format])
    printed = capsys.readouterr().out
    assert main(["check", "--output-format", output_format, "--output", "report"]) == 1
    assert capsys.readouterr().out == ""
    assert Path("report").read_text() == printed


def test_an_output_that_cannot_be_written_is_reported_before_the_work(
    check: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--output", "gone/report"]) == 2
    reason = f"there is no folder {Path('gone').absolute()}"
    assert capsys.readouterr().err == (f"ckpt_surgery: error: --output gone/report cannot be written to: {reason}\n")
    assert check.calls == []


# -- baseline and since


@pytest.mark.parametrize(("output_format", "how"), [("text", "option"), ("text", "configuration"), ("json", "option")])
def test_a_baseline_is_written_once_and_then_leaves_out_what_it_has(
    check: StandIn, capsys: pytest.CaptureFixture[str], output_format: str, how: str
) -> None:
    if how == "configuration":
        configure("baseline = 'known.json'")
    options = ["check", "--output-format", output_format, *(["--baseline", "known.json"] if how == "option" else [])]
    other = replace(finding(), class_name="Other")
    check.answer = checked(finding(), other)
    assert main(options) == 0
    assert main(options) == 0
    captured = capsys.readouterr()
    assert "m.py" not in captured.out
    assert "2 findings of this baseline not shown" in " ".join((captured.out + captured.err).split())
    check.answer = checked(finding(), finding(line=20), finding(code="CKPT001"))
    assert main(options) == 1
    out = capsys.readouterr().out
    assert out.count("is wrong") == 2
    assert "1 of its findings gone" in " ".join(out.split()) or output_format in ("json", "sarif")
    assert main([*options, "--update-baseline"]) == 0
    assert main(options) == 0


def test_a_baseline_hides_no_problem_and_is_rewritten_only_if_named(
    check: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--update-baseline"]) == 2
    assert "--baseline: give that too" in capsys.readouterr().err
    check.answer = checked(finding(), problems=(PROBLEM,))
    assert [main(["check", "--baseline", "known.json"]) for _ in range(2)] == [2, 2]


def test_only_findings_in_changed_lines_are_reported(
    check: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    check.answer = checked(finding(), finding(line=4))
    assert main(["check", ".", "--since", "HEAD"]) == 2
    assert (
        capsys.readouterr().err
        == "ckpt_surgery: error: --since: . is in no git repository: nothing says what was changed there\n"
    )
    Path("models").mkdir()
    Path("models/m.py").write_text("a\nb\nc\nd\n")
    commands = ["init -q", "add .", "-c user.name=A -c user.email=a@example.com commit -qm first"]
    for command in commands:
        subprocess.run(["git", *command.split()], check=True)
    assert main(["check", ".", "--since", "HEAD"]) == 0
    Path("models/m.py").write_text("a\nb\nc\nother\n")
    assert main(["check", ".", "--since", "HEAD"]) == 1
    out = capsys.readouterr().out
    assert "  4:5 CKPT" in out
    assert "  3:5 CKPT" not in out
    assert main(["check", ".", "--since", "v9"]) == 2


def test_a_file_name_that_is_no_text_can_be_printed(
    check: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check.answer = checked(Finding("CKPT003", "\udcff.py", 1, 1, "B", "→ wrong", Applicability.SAFE))
    with open(tmp_path / "out", "w", encoding="ascii") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["check"]) == 1
    assert "\\udcff.py\n  1:1 CKPT003 [safe] B: \\u2192 wrong" in (tmp_path / "out").read_text()
