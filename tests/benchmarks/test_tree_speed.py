"""The speed benchmark: its ratios are right, each target can be missed, and nothing is compared that did not work."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks import tree_speed, tree_speed_report, tree_speed_runs
from benchmarks.figures import Figure, Target
from benchmarks.releases import ReleaseError
from benchmarks.stopwatch import CommandFailed, Run
from benchmarks.tree_speed_report import MEGABYTE, TREE, as_json, figures, table
from benchmarks.tree_speed_runs import Contestant, differing, imported, only_rule, require_same_work
from tests.codemods.snippets import TOY

GOOD: Mapping[str, float] = {
    "ast.parse": 3.0,
    "check, cold": 5.0,
    "check, warm": 0.5,
    "mlinter, cold": 70.0,
    "mlinter, warm": 50.0,
    "mlinter TRF034 alone": 6.4,
    "apply": 10.0,
    "libcst codemod": 90.0,
    "--help": 0.2,
}
"""Seconds that meet every target."""


def rounds(seconds: Mapping[str, float], peak: int = 0, main: int = 0, worker: int = 0) -> dict[str, list[Run]]:
    """One round of runs with these times, and these sizes of their processes."""
    return {name: [Run(value, 0.0, peak, main, worker)] for name, value in seconds.items()}


def missed(samples: Mapping[str, list[Run]]) -> list[str]:
    """The names of the figures that miss their target."""
    return [figure.name for figure in figures(samples) if figure.verdict == "missed"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A release's models folder with one model, in the place where a release has it in the cache."""
    folder = tmp_path / "cache" / "releases" / "transformers-5.23.0" / "src" / "transformers" / "models"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "modeling_toy.py").write_text(TOY)
    return folder


# -- figures and targets


def test_nothing_is_missed_where_every_target_is_met() -> None:
    assert missed(rounds(GOOD, peak=200 * MEGABYTE, main=200 * MEGABYTE, worker=90 * MEGABYTE)) == []


@pytest.mark.parametrize(
    ("name", "seconds", "figure"),
    [
        ("check, cold", 6.1, "check, cold / ast.parse"),
        ("check, warm", 1.1, "check, warm"),
        ("mlinter, cold", 39.0, "mlinter, cold / check, cold"),
        ("mlinter, warm", 3.9, "mlinter, warm / check, warm"),
        ("mlinter TRF034 alone", 4.9, "mlinter TRF034 alone / check, cold"),
        ("libcst codemod", 59.0, "libcst codemod / apply"),
        ("--help", 0.31, "--help"),
    ],
)
def test_each_time_that_is_too_long_is_a_missed_target(name: str, seconds: float, figure: str) -> None:
    assert missed(rounds({**GOOD, name: seconds})) == [figure]


def test_other_peoples_code_has_a_target_of_its_own() -> None:
    samples = rounds({"check, cold": 4.0, "ast.parse": 3.0})
    assert missed(samples) == []
    assert [figure.name for figure in figures(samples, TREE) if figure.verdict == "missed"] == [
        "check, cold / ast.parse"
    ]


@pytest.mark.parametrize("kind", ["peak", "main", "worker"])
@pytest.mark.parametrize("name", ["check, cold", "apply"])
def test_each_process_that_is_too_large_is_a_missed_target(name: str, kind: str) -> None:
    samples = rounds(GOOD, peak=1, main=1, worker=1)
    heavy = {"peak": 1, "main": 1, "worker": 1, kind: 601 * MEGABYTE}
    samples[name] = [Run(GOOD[name], 0.0, heavy["peak"], heavy["main"], heavy["worker"])]
    assert len(missed(samples)) == 1
    assert missed(samples)[0].startswith(f"{name}: ")


def test_memory_that_could_not_be_sampled_has_no_row_rather_than_a_row_of_zeros() -> None:
    names = [figure.name for figure in figures(rounds({"apply": 1.0}, peak=MEGABYTE))]
    assert names == ["apply", "apply: largest process"]


def test_a_ratio_is_taken_within_each_round_before_the_median() -> None:
    # The machine was three times slower in the second round; the ratio of the medians would be 4.
    samples = {"check, cold": [Run(6.0), Run(18.0), Run(6.0)], "ast.parse": [Run(3.0), Run(9.0), Run(1.5)]}
    ratio = next(figure for figure in figures(samples) if figure.unit == "x")
    assert ratio.values == (2.0, 2.0, 4.0)
    assert ratio.median == 2.0


def test_what_did_not_run_has_no_figure() -> None:
    assert [figure.name for figure in figures({"--help": [Run(0.1)]})] == ["--help"]


@pytest.mark.parametrize(
    ("target", "good", "bad"), [(Target(2.0), 2.0, 2.01), (Target(8.0, at_least=True), 8.0, 7.99)]
)
def test_the_limit_itself_is_good_enough(target: Target, good: float, bad: float) -> None:
    assert target.met_by(good)
    assert not target.met_by(bad)


def test_json_names_what_was_missed_and_keeps_every_run() -> None:
    samples = rounds({**GOOD, "--help": 0.4}, main=3)
    content = json.loads(as_json(figures(samples), samples, 1, "transformers"))
    assert content["missed"] == ["--help"]
    assert content["runs"]["apply"] == [{"seconds": 10.0, "processor": 0.0, "peak": 0, "main": 3, "worker": 0}]
    (help_,) = (figure for figure in content["figures"] if figure["name"] == "--help")
    assert (help_["median"], help_["target"], help_["verdict"]) == (0.4, "at most 0.3", "missed")


def test_the_table_shows_target_and_verdict_beside_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    Console(width=120).print(
        table([Figure("--help", (0.4,), "s", Target(0.3)), Figure("apply", (12.3,), "s")], 1, "a tree")
    )
    lines = capsys.readouterr().out.splitlines()
    (help_,) = (line for line in lines if "--help" in line)
    (apply,) = (line for line in lines if "apply " in line and "12.3" in line)
    assert re.findall(r"[^│\s][^│]*[^│\s]", help_) == ["--help", "0.40 s", "0.40", "0.40", "at most 0.3 s", "missed"]
    assert "missed" not in apply
    assert "ok" not in apply


# -- playing


def test_contestants_take_turns_and_each_turn_has_an_empty_folder(tmp_path: Path) -> None:
    turns: list[str] = []

    def contestant(name: str) -> Contestant:
        def turn(scratch: Path) -> Iterator[tuple[str, Run]]:
            assert list(scratch.iterdir()) == []
            (scratch / "left behind").touch()
            turns.append(name)
            yield name, Run(1.0)

        return turn

    samples = tree_speed.play([contestant("a"), contestant("b")], 2, tmp_path)
    assert turns == ["a", "b", "a", "b"]
    assert {name: len(runs) for name, runs in samples.items()} == {"a": 2, "b": 2}
    assert list(tmp_path.iterdir()) == []


def played(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, float], models: Path) -> None:
    """Let the benchmark find these times instead of measuring any."""

    def contestant(scratch: Path) -> Iterator[tuple[str, Run]]:
        yield from ((name, Run(value)) for name, value in seconds.items())

    monkeypatch.setattr(tree_speed, "fetch", lambda version: models.parent)
    monkeypatch.setattr(tree_speed, "contestants", lambda only, models, kept, tree: [contestant])


@pytest.mark.parametrize(("cold", "code"), [(5.0, 0), (6.1, 1)])
def test_the_exit_code_tells_whether_a_target_was_missed(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: float, code: int
) -> None:
    played(monkeypatch, {**GOOD, "check, cold": cold}, models)
    target = tmp_path / "deep" / "speed.json"
    assert tree_speed.main(["--runs", "2", "--out", str(target)]) == code
    assert json.loads(target.read_text())["rounds"] == 2


def test_progress_goes_to_stderr_and_the_table_to_stdout(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played(monkeypatch, {"--help": 0.2}, models)
    tree_speed.main(["--runs", "1", "--out", str(tmp_path / "speed.json")])
    said = capsys.readouterr()
    assert "round 1 of 1: --help: 0.20 s" in said.err
    assert "round 1" not in said.out
    assert "at most 0.3 s" in said.out


@pytest.mark.parametrize("error", [ReleaseError("no network"), CommandFailed("mlinter broke"), OSError(28, "full")])
def test_what_cannot_run_is_one_line_and_2(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def failing(version: str) -> Path:
        raise error

    monkeypatch.setattr(tree_speed, "fetch", failing)
    assert tree_speed.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("tree_speed: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_a_number_of_rounds_that_makes_no_sense_is_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        tree_speed.main([f"--runs={number}"])
    assert stop.value.code == 2
    assert "is no number of rounds" in capsys.readouterr().err


def test_the_phases_name_every_rule(models: Path) -> None:
    from ckpt_surgery.codemods import RULES

    names = " ".join(figure.name for figure in tree_speed.phases(models))
    assert all(rule.code in names for rule in RULES)
    assert "ast.parse alone" in names


# -- contestants


def test_check_runs_cold_then_warm_in_a_cache_of_its_own(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_SURGERY_CACHE", str(tmp_path / "users"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    entries: list[int] = []
    for _, run in tree_speed_runs._check(models, scratch):
        assert "Checked 1 file " in run.output
        entries.append(sum(path.is_file() for path in scratch.rglob("*")))
    assert entries[0] > 0
    assert entries[1] == entries[0]
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize("kept", [True, False])
def test_parsing_runs_in_a_process_of_its_own_and_tells_only_the_time_of_parsing(models: Path, kept: bool) -> None:
    times = dict(tree_speed_runs._parse(models, kept))
    assert list(times) == ["ast.parse", "ast.parse, trees kept"][: 1 + kept]
    assert all(0 < run.seconds < run.processor + 1 for run in times.values())


def test_apply_and_libcst_repair_two_copies_alike_and_leave_the_release_alone(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(CommandFailed, match="rewrote 1 files, and fewer than 220 prove nothing"):
        dict(tree_speed_runs._apply(models.parent, scratch))
    shutil.rmtree(scratch)
    scratch.mkdir()
    monkeypatch.setattr(tree_speed_runs, "REWRITTEN", 1)
    assert list(dict(tree_speed_runs._apply(models.parent, scratch))) == ["apply", "libcst codemod"]
    repaired = (scratch / "theirs" / "transformers" / "models" / "toy" / "modeling_toy.py").read_text()
    assert "class ToyLayer(GradientCheckpointingLayer):" in repaired
    assert (models / "toy" / "modeling_toy.py").read_text() == TOY


def test_a_comparison_in_which_libcst_did_something_else_is_refused(models: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for copy in (ours, theirs):
        shutil.copytree(models, copy)
        (copy / "toy" / "modeling_toy.py").write_text("repaired = True\n")
    require_same_work(models, ours, theirs, at_least=1)
    (theirs / "toy" / "modeling_toy.py").write_text(TOY)
    with pytest.raises(CommandFailed, match=r"left 1 files different, toy/modeling_toy\.py for one"):
        require_same_work(models, ours, theirs, at_least=1)


def test_files_differ_by_content_or_by_being_there_only_once(tmp_path: Path) -> None:
    for folder, files in {"one": {"a.py": "1", "b.py": "1"}, "other": {"a.py": "2", "c.py": "1"}}.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    assert differing(tmp_path / "one", tmp_path / "other") == ["a.py", "b.py", "c.py"]
    assert differing(tmp_path / "one", tmp_path / "one") == []


RULES_TOML = """
[rules.TRF001]
default_enabled = true

[rules.TRF034]
default_enabled = true

[rules.TRF034.explanation]
text = '''
default_enabled is true
'''

[rules.TRF035]
default_enabled = true
"""


def test_one_rule_of_mlinter_stays_on_and_the_others_go_off() -> None:
    import tomllib

    rules = tomllib.loads(only_rule(RULES_TOML, "TRF034"))["rules"]
    assert {name: rule["default_enabled"] for name, rule in rules.items()} == {
        "TRF001": False,
        "TRF034": True,
        "TRF035": False,
    }


def test_a_release_of_mlinter_without_the_rule_is_refused() -> None:
    with pytest.raises(CommandFailed, match="has no rule TRF099"):
        only_rule(RULES_TOML, "TRF099")


@pytest.fixture
def linter(tmp_path: Path) -> Path:
    """A stand-in for the interpreter of mlinter's environment: notes its cache and words, and finds something."""
    python = tmp_path / "venv" / "bin" / "python"
    rules = tmp_path / "venv" / "lib" / "python3.99" / "site-packages" / "mlinter" / "rules.toml"
    for path in (python, rules):
        path.parent.mkdir(parents=True)
    rules.write_text(RULES_TOML)
    python.write_text(f'#!/bin/sh\necho "${{XDG_CACHE_HOME##*/}} $@" >> {tmp_path}/calls\nexit ${{FAKE_EXIT:-1}}\n')
    python.chmod(0o755)
    return python


def test_mlinter_runs_twice_in_one_empty_cache_and_its_rule_alone_in_another(linter: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    names = [name for name, _ in tree_speed_runs._mlinter(linter, Path("models"), scratch)]
    assert names == ["mlinter, cold", "mlinter, warm", "mlinter TRF034 alone"]
    assert (tmp_path / "calls").read_text().splitlines() == [
        "all -m mlinter models",
        "all -m mlinter models",
        f"one -m mlinter --rules-toml {scratch}/alone.toml models",
    ]


@pytest.mark.parametrize("code", ["0", "2"])
def test_a_run_of_mlinter_that_found_nothing_or_broke_is_no_measurement(
    linter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("FAKE_EXIT", code)
    with pytest.raises(CommandFailed, match=f"ended with {code}"):
        list(tree_speed_runs._mlinter(linter, Path("models"), tmp_path))


def test_mlinter_is_installed_once_into_the_cache_and_again_where_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    broken = True

    def fake(command: list[str], **_: object) -> Run:
        commands.append([str(word) for word in command])
        (tmp_path / "tool").mkdir(exist_ok=True)
        if broken and "pip" in commands[-1]:
            raise CommandFailed("no network")
        return Run(1.0)

    monkeypatch.setattr(tree_speed_runs, "measure", fake)
    with pytest.raises(CommandFailed, match="no network"):
        tree_speed_runs._mlinter_python(tmp_path / "tool")
    broken = False
    for _ in range(2):
        assert tree_speed_runs._mlinter_python(tmp_path / "tool") == tmp_path / "tool" / "bin" / "python"
    assert [words[2] for words in commands] == ["venv", "pip", "venv", "pip"]
    assert commands[-1][-1] == "transformers-mlinter==0.1.5"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import json", []),
        ("import torch", ["torch"]),
        ("import transformers, torch", ["torch", "transformers"]),
        ("import importlib.util as u; u.find_spec('torch')", []),
    ],
)
def test_heavy_imports_are_seen_also_where_nothing_heavy_is_installed(
    tmp_path: Path, code: str, heavy: list[str]
) -> None:
    assert imported(["-c", code], tmp_path) == heavy


def test_help_imports_nothing_heavy_and_is_refused_where_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [name for name, _ in tree_speed_runs._help(tmp_path)] == ["--help"] * 5
    monkeypatch.setattr(tree_speed_runs, "imported", lambda words, scratch: ["torch"])
    with pytest.raises(CommandFailed, match="imports torch and must do without"):
        list(tree_speed_runs._help(tmp_path))


def test_only_the_wanted_groups_take_part_and_the_rest_is_not_even_installed(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def installed(folder: Path) -> Path:
        folders.append(folder)
        return folder / "bin" / "python"

    monkeypatch.setattr(tree_speed_runs, "_mlinter_python", installed)
    assert len(tree_speed_runs.contestants(["check", "help"], models, kept=False)) == 3
    assert folders == []
    assert len(tree_speed_runs.contestants(["mlinter"], models, kept=False)) == 1
    assert folders == [models.parents[4] / "tools" / "transformers-mlinter==0.1.5"]
    assert (models.parents[4] / "releases").is_dir()


def test_every_name_with_a_target_is_a_name_that_a_contestant_hands_out() -> None:
    targets = {*GOOD, "ast.parse, trees kept"}
    named = {*tree_speed_report.TIMES, *tree_speed_report.WEIGHED}
    named |= {name for over, under, _ in tree_speed_report.RATIOS for name in (over, under)}
    assert named <= targets
