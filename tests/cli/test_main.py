"""The command line: what it hands to the library, what it prints where, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import ckpt_surgery
from ckpt_surgery import codemods
from ckpt_surgery.cli import terminal
from ckpt_surgery.cli.main import main
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.static.discover import TransformersNotFound
from ckpt_surgery.static.results import ApplyResult, CheckResult, FileChange, Problem

ROOT = Path(ckpt_surgery.__file__).parents[1]


@dataclass(frozen=True)
class StandInRule:
    code: str
    name: str
    summary: str = "One line."
    documentation: str = "What it does\n\nIt finds."


RULES = (
    StandInRule("CKPT001", "plain_block"),
    StandInRule("CKPT003", "keyword_gradient"),
    StandInRule("CKPT101", "ddp_loss"),
)
CODES = tuple(rule.code for rule in RULES)


def finding(kind: Applicability = Applicability.SAFE, code: str = "CKPT003", line: int = 3) -> Finding:
    return Finding(code, "models/m.py", line, 5, "Block", "is wrong", kind, "m", (Edit("models/m.py", 0, 1, "x"),))


INFO, UNKNOWN = finding(Applicability.INFO, line=7), finding(Applicability.UNKNOWN, line=9)
PROBLEM = Problem("models/broken.py", "does not parse")


@dataclass
class StandIn:
    """What the library was called with, and what it is to answer or raise."""

    answer: Any = None
    error: BaseException | None = None
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, paths: Any = None, **options: Any) -> Any:
        self.calls.append((paths, options))
        if self.error is not None:
            raise self.error
        return self.answer

    @property
    def options(self) -> dict[str, Any]:
        return self.calls[-1][1]


def checked(*findings: Finding, problems: tuple[Problem, ...] = (), files: int = 4) -> CheckResult:
    return CheckResult(findings, problems, files, 0, 0.5)


def applied(changes: bool = True, left: tuple[Finding, ...] = (), written: bool = True, **other: Any) -> ApplyResult:
    change = FileChange("models/m.py", "a\n", "b\n", ("CKPT003",))
    values = {"found": (finding(),), "problems": (), "notes": (), "files": 4, "seconds": 0.5, **other}
    return ApplyResult(changes=(change,) if changes else (), left=left, written=written, **values)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(codemods, "RULES", RULES, raising=False)
    monkeypatch.delenv("CKPT_SURGERY_DEBUG", raising=False)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(checked())
    monkeypatch.setattr("ckpt_surgery.static.check.check", stand_in)
    return stand_in


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(applied())
    monkeypatch.setattr("ckpt_surgery.static.apply.apply", stand_in)
    return stand_in


def run(arguments: str) -> int:
    return main(arguments.split())


def configure(text: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.ckpt_surgery]\n{text}\n")


class TestWhatTheLibraryIsAsked:
    def test_no_path_means_the_installed_transformers(self, check: StandIn) -> None:
        assert main(["check"]) == 0
        assert check.calls == [
            (
                None,
                {
                    "select": (),
                    "ignore": (),
                    "include_unsupported": False,
                    "jobs": None,
                    "cache": True,
                    "exclude": (),
                    "per_file_ignores": {},
                    "progress": None,
                },
            )
        ]

    def test_every_option_arrives(self, check: StandIn) -> None:
        run("check a b --select CKPT0 --select ckpt101 --ignore CKPT001 --jobs 2 --include-unsupported --no-cache")
        paths, options = check.calls[0]
        assert paths == [Path("a"), Path("b")]
        assert options["select"] == CODES
        assert options["ignore"] == ("CKPT001",)
        assert (options["jobs"], options["include_unsupported"], options["cache"]) == (2, True, False)

    def test_the_configuration_is_used_where_the_command_line_is_silent(self, check: StandIn) -> None:
        configure(
            "select = ['CKPT0']\nignore = ['CKPT001']\nexclude = ['old']\njobs = 3\ninclude-unsupported = true\n"
            "per-file-ignores = {'a.py' = ['CKPT0']}"
        )
        main(["check"])
        assert check.options["select"] == ("CKPT001", "CKPT003")
        assert check.options["ignore"] == ("CKPT001",)
        assert check.options["exclude"] == ("old",)
        assert check.options["per_file_ignores"] == {"a.py": ("CKPT001", "CKPT003")}
        assert (check.options["jobs"], check.options["include_unsupported"]) == (3, True)

    def test_the_command_line_wins_over_the_configuration(self, check: StandIn) -> None:
        configure(
            "select = ['CKPT0']\nignore = ['CKPT001']\njobs = 3\ninclude-unsupported = true\noutput-format = 'json'"
        )
        run("check --select CKPT001 --jobs 1 --no-include-unsupported --output-format text")
        assert (check.options["select"], check.options["ignore"]) == (("CKPT001",), ())
        assert (check.options["jobs"], check.options["include_unsupported"]) == (1, False)
        run("check --ignore CKPT101")
        assert (check.options["select"], check.options["ignore"]) == (("CKPT001", "CKPT003"), ("CKPT101",))

    def test_the_configuration_is_looked_up_from_the_first_path(self, check: StandIn) -> None:
        Path("sub").mkdir()
        Path("sub/pyproject.toml").write_text("[tool.ckpt_surgery]\njobs = 7\n")
        main(["check", "sub/m.py"])
        assert check.options["jobs"] == 7

    @pytest.mark.parametrize(
        ("options", "unsafe", "write"),
        [([], False, True), (["--unsafe"], True, True), (["--diff"], False, False), (["--check"], False, False)],
    )
    def test_apply_writes_unless_it_only_shows(
        self, apply: StandIn, options: list[str], unsafe: bool, write: bool
    ) -> None:
        main(["apply", "models", *options])
        assert apply.calls[0][0] == [Path("models")]
        assert (apply.options["unsafe"], apply.options["write"]) == (unsafe, write)

    def test_apply_takes_the_shared_options_and_the_configuration(self, apply: StandIn) -> None:
        configure("exclude = ['old']\nper-file-ignores = {'a.py' = ['CKPT101']}")
        run("apply m.py --select CKPT0 --ignore CKPT001 --jobs 2 --include-unsupported --no-cache")
        assert {key: apply.options[key] for key in apply.options if key not in ("unsafe", "write", "progress")} == {
            "select": ("CKPT001", "CKPT003"),
            "ignore": ("CKPT001",),
            "include_unsupported": True,
            "jobs": 2,
            "cache": False,
            "exclude": ("old",),
            "per_file_ignores": {"a.py": ("CKPT101",)},
        }


class TestExitCodes:
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
    def test_check(self, check: StandIn, result: CheckResult, options: list[str], code: int) -> None:
        check.answer = result
        assert main(["check", *options]) == code

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
    def test_apply(self, apply: StandIn, result: ApplyResult, options: list[str], code: int) -> None:
        apply.answer = result
        assert main(["apply", "models", *options]) == code

    def test_an_interrupt_is_one_line_and_130(self, apply: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        apply.error = KeyboardInterrupt()
        assert main(["apply", "models"]) == 130
        assert capsys.readouterr().err == "ckpt_surgery: interrupted; every file is whole, as it was or repaired\n"

    def test_a_missing_transformers_is_one_line_and_2(
        self, check: StandIn, capsys: pytest.CaptureFixture[str]
    ) -> None:
        check.error = TransformersNotFound("transformers is not installed here: name the files")
        assert main(["check"]) == 2
        assert capsys.readouterr().err == ("ckpt_surgery: error: transformers is not installed here: name the files\n")


class TestErrors:
    def test_a_bug_is_one_line_and_no_traceback(self, check: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        check.error = ZeroDivisionError("division\nby zero")
        assert main(["check"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == (
            "ckpt_surgery: error: ZeroDivisionError: division by zero: "
            "this is a bug in ckpt_surgery; CKPT_SURGERY_DEBUG=1 shows where\n"
        )

    def test_a_bug_shows_its_traceback_on_request(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CKPT_SURGERY_DEBUG", "1")
        check.error = ZeroDivisionError("division by zero")
        assert main(["check"]) == 2
        assert "Traceback (most recent call last)" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ("check --select CKPT999", "--select: no rule has the code CKPT999"),
            ("check --ignore CKPT0O3", "--ignore: no rule has the code CKPT0O3: did you mean CKPT003?"),
            ("check --select ,", "--select names no rule"),
            ("check --ignore CKPT", "the options leave no rule to check"),
            ("check --select CKPT001 --ignore CKPT0", "the options leave no rule to check"),
            ("apply m.py --select X", "--select: no rule has the code X"),
            ("rule CKPT999", "rule: no rule has the code CKPT999"),
            ("rule CKPT0", "give a whole one"),
            ("check --output-format json --output gone/report.json", "--output gone/report.json cannot be written to"),
        ],
    )
    def test_a_wrong_option_is_one_line(
        self, check: StandIn, apply: StandIn, capsys: pytest.CaptureFixture[str], arguments: str, said: str
    ) -> None:
        assert run(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("ckpt_surgery: error: ")
        assert said in captured.err
        assert captured.err.count("\n") == 1

    @pytest.mark.parametrize(
        "arguments", ["", "chek", "check --jobs 0", "check --jobs two", "check --output-format xml", "apply", "--no"]
    )
    def test_a_wrong_usage_exits_with_2(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], arguments: str
    ) -> None:
        assert run(arguments) == 2
        captured = capsys.readouterr()
        assert "Usage" in captured.out + captured.err
        assert check.calls == []

    @pytest.mark.parametrize("command", ["check", "apply m.py"])
    def test_a_broken_configuration_is_one_line(
        self, check: StandIn, apply: StandIn, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        configure("jobs = 'many'")
        assert run(command) == 2
        error = capsys.readouterr().err
        assert "[tool.ckpt_surgery] jobs must be a whole number from 1 up, not 'many'" in error
        assert error.count("\n") == 1
        assert check.calls == apply.calls == []

    @pytest.mark.parametrize("key", ["select = ['CKPT9']", "ignore = ['CKPT9']", "per-file-ignores = {a = ['CKPT9']}"])
    def test_an_unknown_code_in_the_configuration_names_the_file_and_the_key(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], key: str
    ) -> None:
        configure(key)
        assert main(["check"]) == 2
        assert f"pyproject.toml: {key.split(' ')[0]}: no rule has the code CKPT9" in capsys.readouterr().err

    def test_every_problem_is_a_line_on_standard_error(
        self, check: StandIn, capsys: pytest.CaptureFixture[str]
    ) -> None:
        check.answer = checked(finding(), problems=(PROBLEM,))
        main(["check"])
        captured = capsys.readouterr()
        assert captured.err == "error: models/broken.py: does not parse\n"
        assert "models/m.py:3:5 CKPT003" in captured.out

    def test_nothing_to_check_is_said(self, check: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        check.answer = checked(files=0)
        assert main(["check", "empty"]) == 0
        assert "no Python file to check" in capsys.readouterr().err


class TestReports:
    def test_text_hides_info_and_unknown_and_says_so(self, check: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        check.answer = checked(finding(), INFO, UNKNOWN)
        main(["check"])
        out = capsys.readouterr().out
        assert "m.py:3:5" in out
        assert "m.py:7:5" not in out
        assert "Not shown: 1 info (--show-info), 1 unknown (--show-unknown)." in out
        assert "\x1b" not in out

    @pytest.mark.parametrize("how", ["option", "configuration"])
    def test_unknown_is_shown_by_option_or_configuration(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], how: str
    ) -> None:
        check.answer = checked(UNKNOWN)
        if how == "configuration":
            configure("show-unknown = true")
        main(["check", *(["--show-unknown"] if how == "option" else [])])
        assert "m.py:9:5" in capsys.readouterr().out
        main(["check", "--no-show-unknown"])
        assert "m.py:9:5" not in capsys.readouterr().out

    def test_statistics_replace_the_findings(self, check: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        check.answer = checked(finding(), finding(line=4))
        main(["check", "--statistics"])
        out = capsys.readouterr().out
        assert "2  CKPT003 keyword_gradient (2 safe): One line." in out
        assert "m.py:3:5" not in out

    @pytest.mark.parametrize("output_format", ["json", "sarif"])
    def test_standard_output_carries_the_machine_document_alone(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], output_format: str
    ) -> None:
        check.answer = checked(finding(), problems=(PROBLEM,))
        main(["check", "--output-format", output_format, "--statistics"])
        captured = capsys.readouterr()
        assert json.loads(captured.out)
        assert "Checked 4 files" in captured.err
        assert "keyword_gradient (1 safe)" in captured.err

    def test_the_github_format_is_commands_only(self, check: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        configure("output-format = 'github'")
        check.answer = checked(finding())
        main(["check"])
        assert capsys.readouterr().out == "::error file=models/m.py,line=3,col=5,title=CKPT003::Block: is wrong\n"

    @pytest.mark.parametrize("output_format", ["text", "json", "github", "sarif"])
    def test_output_goes_to_the_file_and_equals_what_would_be_printed(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], output_format: str
    ) -> None:
        check.answer = checked(finding())
        main(["check", "--output-format", output_format])
        printed = capsys.readouterr().out
        assert main(["check", "--output-format", output_format, "--output", "report"]) == 1
        assert capsys.readouterr().out == ""
        assert Path("report").read_text() == printed

    def test_a_file_name_that_is_no_text_can_be_printed(
        self, check: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        check.answer = checked(Finding("CKPT003", "\udcff.py", 1, 1, "B", "→ wrong", Applicability.SAFE))
        with open(tmp_path / "out", "w", encoding="ascii") as out:
            monkeypatch.setattr(sys, "stdout", out)
            assert main(["check"]) == 1
        assert "\\udcff.py:1:1 CKPT003 [safe] B: \\u2192 wrong" in (tmp_path / "out").read_text()

    def test_apply_sums_up(self, apply: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        apply.answer = applied(notes=("m.py: a note",))
        main(["apply", "models"])
        assert capsys.readouterr().out.splitlines() == [
            "Changed 1 of 4 files in 0.5 s.",
            "  CKPT003 keyword_gradient: 1 repaired, none left",
            "Notes:",
            "  - m.py: a note",
        ]

    def test_a_diff_is_alone_on_standard_output(self, apply: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        apply.answer = applied(written=False)
        main(["apply", "models", "--diff"])
        captured = capsys.readouterr()
        assert captured.out == apply.answer.changes[0].diff
        assert "Would change 1 of 4 files" in captured.err

    def test_a_diff_keeps_other_line_endings(self, apply: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        change = FileChange("m.py", "a\r\nb\x0cc\n", "a\r\nd\x0cc\n", ("CKPT003",))
        apply.answer = ApplyResult((change,), (), (), (), (), 1, False, 0.1)
        main(["apply", "m.py", "--diff"])
        assert capsys.readouterr().out == change.diff

    def test_apply_check_names_the_files(self, apply: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        apply.answer = applied(written=False)
        main(["apply", "models", "--check"])
        assert capsys.readouterr().out.startswith("would change models/m.py\n")


class TestRule:
    def test_without_a_code_all_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["rule"]) == 0
        expected = [line for rule in RULES for line in (f"{rule.code} {rule.name}", f"    {rule.summary}")]
        assert capsys.readouterr().out.splitlines() == expected

    @pytest.mark.parametrize("name", ["CKPT003", "ckpt003", "keyword_gradient"])
    def test_a_rule_is_explained_by_code_or_name(self, capsys: pytest.CaptureFixture[str], name: str) -> None:
        assert main(["rule", name]) == 0
        assert capsys.readouterr().out == "CKPT003 keyword_gradient\n\nWhat it does\n\nIt finds.\n"


class FakeTerminal:
    """A stream that says it is a terminal, over one that is none."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class TestTerminal:
    def test_a_terminal_gets_colour_and_the_same_words(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
        self, check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check.answer = checked(Finding("CKPT003", "m.py", 1, 1, "", "[bold]:smile:[/x]", Applicability.SAFE))
        monkeypatch.setattr(sys, "stdout", FakeTerminal(sys.stdout))
        assert main(["check"]) == 1
        assert "[bold]:smile:[/x]" in capsys.readouterr().out

    def test_progress_is_drawn_on_standard_error_only_where_that_is_a_terminal(
        self, check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
        monkeypatch.undo()
        with terminal.progress_bar() as progress:
            assert progress is None

    def test_a_reader_that_went_away_changes_neither_exit_code_nor_standard_error(
        self, check: StandIn, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
        self, check: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open("/dev/full", "w") as full:
            monkeypatch.setattr(sys, "stdout", full)
            assert main(["check"]) == 2
        assert capsys.readouterr().err == (
            "ckpt_surgery: error: standard output cannot be written to: No space left on device\n"
        )


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


class TestAsAProcess:
    @pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["apply", "-h"], ["rule", "--help"]])
    def test_help_is_printed_within_80_columns(self, arguments: list[str]) -> None:
        ended = python("-m", "ckpt_surgery", *arguments)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith("Usage: ckpt_surgery")
        assert max(map(len, ended.stdout.splitlines())) <= 80

    def test_the_version_is_that_of_the_distribution(self) -> None:
        ended = python("-m", "ckpt_surgery", "--version")
        assert ended.stdout == f"ckpt_surgery {ckpt_surgery.__version__}\n"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert project.get("version", ckpt_surgery.__version__) == ckpt_surgery.__version__

    @pytest.mark.parametrize(
        ("statement", "absent"),
        [
            ("import ckpt_surgery", "ckpt_surgery.codemods typer rich libcst torch transformers importlib.metadata"),
            ("import ckpt_surgery.cli.main", "ckpt_surgery.codemods rich libcst torch transformers"),
            ("import ckpt_surgery.static.discover", "rich libcst torch transformers typer"),
            ("from ckpt_surgery import Finding, Problem", "rich libcst torch transformers typer"),
        ],
    )
    def test_an_import_loads_no_more_than_it_needs(self, statement: str, absent: str) -> None:
        ended = python("-c", f"import sys; {statement}; print(*(n for n in {absent.split()} if n in sys.modules))")
        assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "", "")


def test_main_turns_an_interrupt_outside_of_a_command_into_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> Callable[[], None]:
        raise KeyboardInterrupt

    monkeypatch.setattr("ckpt_surgery.cli.main.app", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "ckpt_surgery: interrupted\n"
