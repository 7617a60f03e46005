"""The speed benchmark of `verify`: its figures add up, each target can be missed, all processes are weighed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import verify_speed
from benchmarks.stopwatch import CommandFailed
from benchmarks.verify_speed import GIGABYTE, Survey, figures, longest, main, run, spent, tree_memory


def entry(model: str, **seconds: float) -> dict[str, Any]:
    return {"model": model, "variant": "", "status": "ok", "seconds": seconds}


REPORTS = [
    entry("A", build=1.0, reference=2.0, non_reentrant=3.0, reentrant=4.0),
    entry("B", build=0.5),
    entry("C", build=9.5, reference=10.0),
]


def survey(seconds: float = 60.0, peak: float = 1.0, reports: list[dict[str, Any]] = REPORTS) -> Survey:
    return Survey(seconds, int(peak * GIGABYTE), {"reports": reports, "versions": {"torch": "2"}})


def values(one: Survey, many: Survey, **options: Any) -> dict[str, float]:
    return {figure.name: figure.median for figure in figures(one, many, 2, **{"whole": True, **options})}


def verdicts(one: Survey, many: Survey, **options: Any) -> dict[str, str]:
    settings = {"jobs": 2, "whole": True, **options}
    return {figure.name: figure.verdict for figure in figures(one, many, **settings) if figure.verdict}


def test_the_phases_and_the_rest_add_up_to_what_the_workers_had() -> None:
    phases = values(survey(10), survey(60))
    assert phases["in workers: build"] == 11
    assert phases["in workers: reference"] == 12
    assert phases["in workers: reentrant"] == 4
    assert sum(value for name, value in phases.items() if name.startswith("in workers")) == 2 * 60
    assert phases["classes a minute"] == 3
    assert spent([]) == {}


@pytest.mark.parametrize(
    ("one", "many", "missed"),
    [
        (survey(14), survey(479, 5.9), set()),
        (survey(16), survey(479), {"verify gpt_bigcode, imports included"}),
        (survey(14), survey(481), {"verify --all"}),
        (survey(14), survey(479, 6.1), {"peak of all processes together"}),
    ],
)
def test_each_target_can_be_missed(one: Survey, many: Survey, missed: set[str]) -> None:
    assert {name for name, verdict in verdicts(one, many).items() if verdict == "missed"} == missed


@pytest.mark.parametrize("options", [{"whole": False}, {"jobs": 8}])
def test_a_part_of_the_models_or_another_machine_has_no_target(options: dict[str, Any]) -> None:
    assert verdicts(survey(14), survey(10**4, 50), **options).keys() == {"verify gpt_bigcode, imports included"}


def test_the_slowest_classes_come_first() -> None:
    lines = longest([*REPORTS, entry("D")])
    assert [line.split()[2] for line in lines] == ["C", "A", "B", "D"]
    assert lines[0].split("  ")[-1] == "build 9.5, reference 10.0"
    assert len(longest([entry(str(n)) for n in range(99)])) == 10


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="the system does not tell")
def test_a_child_counts_and_what_it_shares_counts_once() -> None:
    script = """
import os, sys, time
shared = bytearray(os.urandom(64 << 20))
if os.fork() == 0:
    own = bytearray(os.urandom(32 << 20))
    print("ready", flush=True)
    time.sleep(100)
    os._exit(len(own))
os.wait()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert (96 << 20) < tree_memory(process.pid) < (150 << 20)
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
    assert tree_memory(process.pid) == 0


FAKE = """
import json, sys
options = sys.argv[1:]
assert options[:2] == ["verify", "toy"], options
ballast = bytearray(1 << 25)
if "--broken" in options:
    sys.exit("no such model")
with open(options[options.index("--output") + 1], "w") as file:
    json.dump({"reports": [], "options": options}, file)
"""


def test_a_run_brings_back_the_document_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    brought_back = run(["toy"], 3, [str(tmp_path / "fake.py")])
    assert brought_back.seconds > 0
    assert brought_back.document["options"][2:7] == ["--jobs", "3", "--exit-zero", "--output-format", "json"]
    with pytest.raises(CommandFailed, match="ended with 1: no such model"):
        run(["toy", "--broken"], 3, [str(tmp_path / "fake.py")])


class TestTheScript:
    def play(self, monkeypatch: pytest.MonkeyPatch, out: Path, seconds: float, *options: str) -> int:
        asked: list[list[str]] = []

        def fake(arguments: list[str], _jobs: int) -> Survey:
            asked.append(arguments)
            return survey(14 if arguments == ["gpt_bigcode"] else seconds)

        monkeypatch.setattr(verify_speed, "run", fake)
        code = main(["--out", str(out), *options])
        self.asked = asked
        return code

    def test_prints_a_table_and_writes_json(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "new" / "speed.json"
        assert self.play(monkeypatch, out, 100) == 0
        assert self.asked == [["gpt_bigcode"], ["--all"]]
        printed = capsys.readouterr().out
        assert "classes a minute" in printed
        assert "verify: 3 ok" in printed
        document = json.loads(out.read_text(encoding="utf-8"))
        assert document["figures"]["classes a minute"] == {"value": 1.8, "unit": "1/min"}
        assert document["classes"][1] == REPORTS[1]

    def test_ends_with_1_where_a_target_is_missed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert self.play(monkeypatch, tmp_path / "a", 500) == 1
        assert self.play(monkeypatch, tmp_path / "a", 500, "--shard", "1/9") == 0
        assert self.asked[1] == ["--all", "--shard", "1/9"]

    def test_ends_with_2_where_the_command_fails(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fails(*_: Any) -> Survey:
            raise CommandFailed("`verify` ended with 2: torch is missing")

        monkeypatch.setattr(verify_speed, "run", fails)
        assert main(["--out", str(tmp_path / "a")]) == 2
        assert capsys.readouterr().err.endswith("verify_speed: `verify` ended with 2: torch is missing.\n")
