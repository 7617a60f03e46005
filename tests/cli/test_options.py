"""The options that commands share, and the configuration behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.cli.main import main
from tests.cli.stand_ins import CODES, StandIn, configure, run


def test_no_path_means_the_installed_transformers(check: StandIn) -> None:
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


def test_every_option_arrives(check: StandIn) -> None:
    run("check a b --select CKPT0 --select ckpt101 --ignore CKPT001 --jobs 2 --include-unsupported --no-cache")
    paths, options = check.calls[0]
    assert paths == [Path("a"), Path("b")]
    assert options["select"] == CODES
    assert options["ignore"] == ("CKPT001",)
    assert (options["jobs"], options["include_unsupported"], options["cache"]) == (2, True, False)


def test_the_configuration_is_used_where_the_command_line_is_silent(check: StandIn) -> None:
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


def test_the_command_line_wins_over_the_configuration(check: StandIn) -> None:
    configure("select = ['CKPT0']\nignore = ['CKPT001']\njobs = 3\ninclude-unsupported = true\noutput-format = 'json'")
    run("check --select CKPT001 --jobs 1 --no-include-unsupported --output-format text")
    assert (check.options["select"], check.options["ignore"]) == (("CKPT001",), ())
    assert (check.options["jobs"], check.options["include_unsupported"]) == (1, False)
    run("check --ignore CKPT101")
    assert (check.options["select"], check.options["ignore"]) == (("CKPT001", "CKPT003"), ("CKPT101",))


def test_the_configuration_is_looked_up_from_the_first_path(check: StandIn) -> None:
    Path("sub").mkdir()
    Path("sub/pyproject.toml").write_text("[tool.ckpt_surgery]\njobs = 7\n")
    main(["check", "sub/m.py"])
    assert check.options["jobs"] == 7


def test_apply_takes_the_shared_options_and_the_configuration(apply: StandIn) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("check --select CKPT999", "--select: no rule has the code CKPT999"),
        ("check --ignore CKPT0O3", "--ignore: no rule has the code CKPT0O3: did you mean CKPT003?"),
        ("check --select ,", "--select names no rule"),
        ("check --ignore CKPT", "--ignore leaves no rule to check, because it takes all rules: ignore fewer"),
        ("check --select CKPT001 --ignore CKPT0", "because it takes all that --select chooses: ignore fewer"),
        ("rule CKPT999", "rule: no rule has the code CKPT999"),
        ("rule CKPT0", "give a whole one"),
    ],
)
def test_a_wrong_option_is_one_line(
    check: StandIn, apply: StandIn, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ckpt_surgery: error: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check --jobs 0", "'--jobs': '0' is not a whole number from 1 up"),
        ("check --jobs 1000000001", "'--jobs': '1000000001' is too large: it can be 1,000,000,000 at most"),
        ("verify --timeout soon", "'--timeout': 'soon' is not a number of seconds"),
        ("check --output-format xml", "'--output-format': 'xml' is not one of text, json, github, sarif, html"),
        ("pr . --group-by size", "'--group-by': 'size' is not one of family, root, all"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_our_words(
    check: StandIn, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")
    assert check.calls == []


@pytest.mark.parametrize(
    ("lines", "arguments", "said"),
    [
        ("ignore = ['CKPT']", "check", "{file}: ignore leaves no rule to check, because it takes all rules"),
        (
            "select = ['CKPT0']\nignore = ['CKPT0']",
            "check",
            "{file}: ignore leaves no rule to check, because it takes all that {file}: select chooses",
        ),
        (
            "select = ['CKPT0']",
            "check --ignore CKPT0",
            "--ignore leaves no rule to check, because it takes all that {file}: select chooses",
        ),
    ],
)
def test_options_that_leave_no_rule_name_where_they_came_from(
    check: StandIn, capsys: pytest.CaptureFixture[str], lines: str, arguments: str, said: str
) -> None:
    configure(lines)
    assert run(arguments) == 2
    said = said.format(file=Path("pyproject.toml").absolute())
    assert capsys.readouterr().err == f"ckpt_surgery: error: {said}: ignore fewer\n"


@pytest.mark.parametrize("command", ["check", "apply"])
def test_an_empty_path_is_refused(
    check: StandIn, apply: StandIn, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "m.py", ""]) == 2
    assert capsys.readouterr().err.startswith("ckpt_surgery: error: a path is empty, ")
    assert check.calls == apply.calls == []


@pytest.mark.parametrize("key", ["select = ['CKPT9']", "ignore = ['CKPT9']", "per-file-ignores = {a = ['CKPT9']}"])
def test_an_unknown_code_in_the_configuration_names_the_file_and_the_key(
    check: StandIn, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    configure(key)
    assert main(["check"]) == 2
    assert f"pyproject.toml: {key.split(' ')[0]}: no rule has the code CKPT9" in capsys.readouterr().err
