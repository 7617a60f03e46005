"""The command `verify`: its survey, output and exit codes, and a live run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ckpt_surgery
from ckpt_surgery import optional
from ckpt_surgery.cli import verify as verify_command
from ckpt_surgery.cli.main import main
from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.measure.kinds import CauseKind, SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import (
    LEVELS,
    LONE_LEVELS,
    MODES,
    QUICK_LEVELS,
    Fault,
    ModeReport,
    Outcome,
    Repair,
    Skip,
)
from ckpt_surgery.survey.resume import ResumeError
from ckpt_surgery.survey.target import SurveyTarget
from ckpt_surgery.survey.worker_pool import WorkerPoolError
from tests.measure.fault_cases import fault_at, why

ROOT = Path(ckpt_surgery.__file__).parents[1]
FAULT = fault_at("set", "h.0.weight", explanation=why(CauseKind.KEYWORD_GRADIENT))


def report(name: str, *faults: Fault, **other: Any) -> Report:
    outcome: Outcome = "failed" if faults else "ok"
    modes = tuple(ModeReport(mode, faults, dict.fromkeys(LEVELS, outcome)) for mode in MODES)
    return Report(name, "toy", modes=modes, **other)


NOT_RUN = Skip(("run",), SkipKind.ALWAYS_NON_REENTRANT)
GOOD, BAD = report("GoodModel"), report("BadModel", FAULT)
UNBUILT = Report("OddModel", "toy", problem="no tiny OddModel can be made: forward raised ValueError: no")
REFUSED = ModeReport("non_reentrant", (), {}, refused="OddLayer layers.0 hides a gradient: return it")
REPAIRED = report("HealedModel", FAULT, repair=Repair(GOOD.modes[:1], "what was done"))
SAVED = report("SavedModel", FAULT, repair=Repair((REFUSED,), "what was done"))
STILL_BAD = report("StubbornModel", FAULT, repair=Repair(BAD.modes[:1], "what was done"))
SPOILT = report("SpoiltModel", repair=Repair(BAD.modes[:1], "what was done"))
LEFT = report("LeftModel", FAULT, repair=Repair(problem="LeftModel has no blocks to checkpoint", refused=True))
NOTHING = report("FlatModel", repair=Repair(problem="FlatModel has no blocks to checkpoint", refused=True))
WRAPPED = Report("WrappedModel", "toy", modes=(ModeReport("reentrant", (), {"run": "skipped"}, skips=(NOT_RUN,)),))
UNSUPPORTED = Report("OldModel", "toy", supported=False, problem="OldModel says that it does not support it")


class Survey:
    """A fake of the survey and its processes: what it was asked for, and what it answers."""

    def __init__(self) -> None:
        self.reports: Sequence[Report] = (GOOD,)
        self.resolved: dict[str, Any] = {"targets": [SurveyTarget("bert", "BertModel").to_dict()]}
        self.error: BaseException | None = None
        self.work: Callable[[], object] = lambda: None
        self.asked: dict[str, Any] = {}
        self.named: dict[str, Any] = {}

    def __call__(self, jobs: Sequence[SurveyTarget], **options: Any) -> list[Report]:
        self.asked = {"jobs": jobs, **options}
        self.work()
        if self.error is not None:
            raise self.error
        return list(self.reports)

    def pool(self) -> Survey:
        return self

    def __enter__(self) -> Survey:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, function: str, **arguments: Any) -> dict[str, Any]:
        assert function == "ckpt_surgery.survey.resolve:resolve_apart"
        self.named = arguments
        return self.resolved


@pytest.fixture
def survey(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Survey:
    stand_in = Survey()
    monkeypatch.setattr("ckpt_surgery.survey.survey", stand_in)
    monkeypatch.setattr("ckpt_surgery.survey.worker_pool.WorkerPool", stand_in.pool)
    monkeypatch.setattr(optional, "is_installed", lambda name: True)
    monkeypatch.chdir(tmp_path)
    return stand_in


def run(arguments: str) -> int:
    return main(["verify", *arguments.split()])


class TestWhatTheSurveyIsAsked:
    def test_both_modes_and_all_levels_of_the_named_models_by_default(self, survey: Survey) -> None:
        assert run("bert GPT2Model") == 0
        assert survey.named == {"names": ["bert", "GPT2Model"], "everything": False, "trust_remote_code": False}
        asked = {name: value for name, value in survey.asked.items() if name != "pool"}
        assert asked == {
            "jobs": [SurveyTarget("bert", "BertModel")],
            "modes": MODES,
            "levels": LONE_LEVELS,
            "fix": False,
            "workers": None,
            "timeout": TIMEOUT,
            "resume": None,
            "shard": None,
            "progress": None,
        }

    def test_every_option_arrives_and_words_may_have_dashes(self, survey: Survey) -> None:
        run(
            "--all --modes reentrant --levels values,set --levels recompute --shard 2/4 --jobs 3 --timeout 5 "
            "--resume kept.jsonl --trust-remote-code --fix"
        )
        assert survey.named == {"names": [], "everything": True, "trust_remote_code": True}
        assert survey.asked["modes"] == ("reentrant",)
        assert survey.asked["fix"] is True
        assert survey.asked["levels"] == ("recompute", "set", "values")
        assert (survey.asked["shard"], survey.asked["workers"], survey.asked["timeout"]) == ((2, 4), 3, 5.0)
        assert survey.asked["resume"] == Path("kept.jsonl")
        run("bert --device cuda:1")
        assert (survey.named["device"], survey.asked["device"]) == ("cuda:1", "cuda:1")
        run("bert --modes Non-Reentrant,reentrant --levels all")
        assert (survey.asked["modes"], survey.asked["levels"]) == (MODES, LONE_LEVELS)
        Path("pyproject.toml").write_text("[tool.ckpt_surgery]\njobs = 7\n", encoding="utf-8")
        run("bert")
        assert survey.asked["workers"] == 7

    def test_only_deep_judges_all_classes_at_the_levels_loop_and_precision(self, survey: Survey) -> None:
        for line, levels in (
            ("--all", QUICK_LEVELS),
            ("--all --deep", LONE_LEVELS),
            ("--all --levels loop,set", ("set", "loop")),
        ):
            run(line)
            assert survey.asked["levels"] == levels
        assert run("--all --deep --levels set") == 2


class TestExitCodes:
    @pytest.mark.parametrize(
        ("reports", "options", "code"),
        [
            ((GOOD,), "bert", 0),
            ((GOOD, BAD), "bert", 1),
            ((GOOD, BAD), "bert --exit-zero", 0),
            ((BAD,), "--all --output-format json", 1),
            ((GOOD, UNSUPPORTED), "bert", 0),
            ((GOOD, UNBUILT), "bert", 2),
            ((BAD, UNBUILT), "bert --exit-zero", 2),
            ((GOOD, UNBUILT), "--all", 0),
            ((BAD, UNBUILT), "--all", 1),
            ((REPAIRED, NOTHING), "bert --fix", 0),
            ((REPAIRED, SAVED), "bert --fix", 1),
            ((GOOD, STILL_BAD), "bert --fix", 1),
            ((SPOILT,), "--all --fix", 1),
            ((LEFT,), "--all --fix", 1),
            ((REPAIRED, UNBUILT), "bert --fix", 2),
        ],
    )
    def test_say_what_was_found(self, survey: Survey, reports: Sequence[Report], options: str, code: int) -> None:
        survey.reports = reports
        assert run(options) == code

    @pytest.mark.parametrize("option", ["", " --show-unbuilt"])
    def test_a_named_model_that_was_not_built_is_reported_once_in_one_line(
        self, survey: Survey, capsys: pytest.CaptureFixture[str], option: str
    ) -> None:
        survey.reports = (UNBUILT,)
        run(f"OddModel{option}")
        captured = capsys.readouterr()
        assert captured.err == f"ckpt_surgery: error: OddModel: {UNBUILT.problem}\n"
        assert captured.out.startswith("Verified 1 class in ")
        assert captured.out.endswith(": 1 not built.\n")

    def test_a_part_without_a_model_is_said_to_be_empty(
        self, survey: Survey, capsys: pytest.CaptureFixture[str]
    ) -> None:
        survey.reports = ()
        assert run("bert --shard 1/9") == 0
        assert capsys.readouterr().err == "ckpt_surgery: part 1 of 9 is empty: the names mean 1 class\n"
        survey.reports = (GOOD,)
        run("bert --shard 9/9")
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ("", "--resume FILE keeps what is finished"),
            ("--resume a", "what is finished is kept in a"),
            ("--resume b", "nothing was finished yet"),
        ],
    )
    def test_an_interrupt_is_one_line_and_130(
        self, survey: Survey, capsys: pytest.CaptureFixture[str], options: str, said: str
    ) -> None:
        Path("a").touch()
        survey.error = KeyboardInterrupt()
        assert run(f"bert {options}") == 130
        assert capsys.readouterr().err == f"ckpt_surgery: interrupted; {said}\n"

    def test_sigterm_is_one_line_and_143_and_is_as_before_afterwards(
        self, survey: Survey, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = signal.getsignal(signal.SIGTERM)
        survey.work = lambda: os.kill(os.getpid(), signal.SIGTERM)
        assert run("bert") == 143
        said = "ckpt_surgery: ended by SIGTERM; --resume FILE keeps what is finished\n"
        assert capsys.readouterr().err == said
        assert signal.getsignal(signal.SIGTERM) is before


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ("bert --all", "--all and a named model exclude each other: give one of them"),
            ("", "no model is named: give a model type such as gpt_bigcode, a class, a folder, or --all"),
            ("bert --modes reentrent", "--modes does not know reentrent: did you mean reentrant?"),
            ("bert --modes ,", "--modes names nothing: it takes non_reentrant, reentrant"),
            ("bert --levels xyz", "--levels does not know xyz: it takes all, run, recompute, set, values, state"),
            ("bert --shard 5/4", "--shard '5/4' is not a shard: write i/n with i from 1 to n, such as 2/4"),
            ("bert --timeout nan", "--timeout nan is not a time limit: give seconds from 0.1 to 86400"),
            (f"bert --output {'a' * 300}", f"--output {'a' * 300} cannot be written to: "),
            ("bert --output no/report.txt", "--output no/report.txt cannot be written to: there is no folder"),
        ],
    )
    def test_in_the_options_are_one_line_before_any_work(
        self, survey: Survey, capsys: pytest.CaptureFixture[str], options: str, said: str
    ) -> None:
        assert run(options) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"ckpt_surgery: error: {said}")
        assert captured.err.count("\n") == 1
        assert not survey.named

    def test_a_page_that_cannot_be_drawn_or_written_is_no_work_begun(
        self, survey: Survey, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert run("bert --output-format html") == 2
        said = capsys.readouterr().err
        assert said.startswith("ckpt_surgery: error: The HTML report draws its plots with matplotlib, which is not")
        assert "is a bug" not in said
        assert not survey.named
        verify_command.HTML_FILE.mkdir()
        assert run("bert --output-format html") == 2
        assert "ckpt_surgery-report.html cannot be written to: it is a folder" in capsys.readouterr().err
        assert not survey.named

    def test_looking_at_the_place_of_the_report_changes_nothing(self, survey: Survey) -> None:
        Path("old.txt").write_text("kept", encoding="utf-8")
        survey.error = KeyboardInterrupt()
        for name in ("old.txt", "new.txt"):
            assert run(f"bert --output {name}") == 130
        assert [path.name for path in Path().iterdir()] == ["old.txt"]
        assert Path("old.txt").read_text(encoding="utf-8") == "kept"

    @pytest.mark.parametrize(
        "error", [ResumeError("--resume a is not a file of a survey"), WorkerPoolError("no worker")]
    )
    def test_in_a_name_or_of_the_survey_are_one_line(
        self, survey: Survey, capsys: pytest.CaptureFixture[str], error: Exception
    ) -> None:
        survey.error = error
        assert run("bert") == 2
        assert capsys.readouterr().err == f"ckpt_surgery: error: {error}\n"
        survey.resolved = {"error": "there is no model type named 'brt': did you mean bert?"}
        assert run("brt") == 2
        assert capsys.readouterr().err == f"ckpt_surgery: error: {survey.resolved['error']}\n"


class TestTheReport:
    def test_of_one_model_is_all_about_it_and_of_many_a_table(
        self, survey: Survey, capsys: pytest.CaptureFixture[str]
    ) -> None:
        survey.reports = (BAD,)
        run("BadModel")
        captured = capsys.readouterr()
        assert "BadModel (toy): FAILED" in captured.out
        assert "Verified 1 class in " in captured.out
        assert captured.err == ""
        survey.reports = (GOOD, BAD, UNBUILT)
        run("--all")
        table = capsys.readouterr().out
        assert "BadModel (toy): FAILED" not in table
        assert "Failed: 1 class" in table
        assert UNBUILT.problem not in table
        survey.reports = (UNBUILT,)
        run("--all --show-unbuilt")
        assert "forward raised ValueError: no" in capsys.readouterr().out

    def test_shows_what_is_after_a_surgery_beside_what_was_before(
        self, survey: Survey, capsys: pytest.CaptureFixture[str]
    ) -> None:
        survey.reports = (REPAIRED, SAVED, SPOILT, GOOD)
        run("bert --fix")
        captured = capsys.readouterr().out
        assert "HealedModel (toy): FAILED; after wrap_blocks: ok" in captured
        assert "SavedModel (toy): FAILED; after wrap_blocks: refused" in captured
        assert "SpoiltModel (toy): ok; after wrap_blocks: FAILED" in captured
        assert "GoodModel (toy)" not in captured
        said = " ".join(captured.split())
        assert "non_reentrant: OddLayer layers.0 hides a gradient: return it" in said
        assert said.endswith("2 failed, 2 ok; after wrap_blocks: 1 ok, 1 refused, 1 failed.")

    def test_as_a_page_goes_into_a_file_in_any_case(self, survey: Survey, capsys: pytest.CaptureFixture[str]) -> None:
        run("--all --output-format html")
        assert "GoodModel" in Path("ckpt_surgery-report.html").read_text(encoding="utf-8")
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.endswith("The report is in ckpt_surgery-report.html.\n")

    @pytest.mark.parametrize(
        ("output_format", "begin"),
        [("text", "Failed: "), ("json", "{"), ("markdown", ""), ("html", "<!doctype html>")],
    )
    def test_goes_into_a_file(
        self, survey: Survey, capsys: pytest.CaptureFixture[str], output_format: str, begin: str
    ) -> None:
        survey.reports = (GOOD, BAD)
        run(f"--all --output-format {output_format} --output report")
        text = Path("report").read_text(encoding="utf-8")
        assert text.lower().startswith(begin.lower())
        assert "BadModel" in text
        assert capsys.readouterr().out == ""


def test_neither_help_nor_a_wrong_option_loads_torch() -> None:
    script = (
        "import sys\nfrom ckpt_surgery.cli.main import main\n"
        "codes = main(['verify', '--help']), main(['verify']), main(['verify', 'a', '--shard', '0/0'])\n"
        "print(codes, sorted({'torch', 'transformers', 'ckpt_surgery.measure'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "(0, 2, 2) ['ckpt_surgery.measure']"


ODD_MODELS = """
import re
import torch
from torch import nn

class Plain(nn.Module):
    supports_gradient_checkpointing = True

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        pass

    def gradient_checkpointing_disable(self):
        pass

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum()

def plain():
    return Plain(), {"x": torch.randn(2, 4)}

def asleep():
    return Plain().eval(), {"x": torch.randn(2, 4)}

def stubborn():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=50, **sizes))

    def switch_off(*_):
        for layer in model.encoder.layer:
            layer.gradient_checkpointing = False
            layer._gradient_checkpointing_func = None

    model.register_forward_pre_hook(switch_off)
    return model

def hangs():
    re.match(r"(a*)*b", "a" * 64)
"""


def command(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ckpt_surgery", "verify", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.torch
class TestLive:
    @pytest.mark.both
    def test_models_of_the_installed_transformers_and_of_ones_own(self, tmp_path: Path) -> None:
        (tmp_path / "odd_models.py").write_text(ODD_MODELS, encoding="utf-8")
        names = [f"odd_models:{name}" for name in ("plain", "asleep", "stubborn")]
        names += ["GPTBigCodeForCausalLM", "MixtralForCausalLM", "ClvpEncoder"]
        options = ("--fix", "--timeout", "200", "--modes", "non_reentrant", "--output-format", "json")
        process = command(*names, *options, folder=tmp_path)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 2
        assert "error: odd_models:asleep: Plain is in evaluation mode, in which nothing is checkpointed: call" in err
        document = json.loads(out)
        entries = {entry["target"] + entry["variant"]: entry for entry in document["reports"]}
        release = document["versions"]["transformers"]
        broken, before_5 = release.startswith(("4.55", "4.57")), release.startswith("4.")  # docs/coverage/releases.md
        assert {name: (entry["status"], (entry["repair"] or {}).get("status")) for name, entry in entries.items()} == {
            "GPTBigCodeForCausalLM": ("failed" if broken else "ok", "ok"),
            "MixtralForCausalLM": ("ok", "ok"),
            "MixtralForCausalLMrouter loss": ("ok", "ok"),
            "ClvpEncoder": ("skipped" if before_5 else "failed", "ok"),
            "odd_models:plain": ("failed", "refused"),
            "odd_models:asleep": ("not built", None),
            "odd_models:stubborn": ("failed", "failed"),
        }
        assert entries["odd_models:plain"]["model"] == "Plain"
        assert "recompute" in {fault["level"] for fault in entries["odd_models:plain"]["modes"][0]["faults"]}

    @pytest.mark.parametrize(
        ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
    )
    def test_an_interrupt_ends_the_workers_and_keeps_what_is_finished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, word: str
    ) -> None:
        (tmp_path / "odd_models.py").write_text(ODD_MODELS, encoding="utf-8")
        (tmp_path / "temporary").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
        options = ("--jobs", "1", "--timeout", "1000", "--resume", "kept.jsonl")
        process = command("odd_models:asleep", "odd_models:hangs", *options, folder=tmp_path)
        kept = tmp_path / "kept.jsonl"
        limit = time.monotonic() + 120
        while not (kept.exists() and kept.read_bytes().count(b"\n") == 2) and time.monotonic() < limit:
            time.sleep(0.05)
        process.send_signal(number)
        _out, err = process.communicate(timeout=60)
        assert process.returncode == code
        assert err.splitlines()[-1] == f"ckpt_surgery: {word}; what is finished is kept in kept.jsonl"
        assert "odd_models:asleep" in kept.read_text(encoding="utf-8").splitlines()[1]
        assert list((tmp_path / "temporary").glob("ckpt_surgery-*")) == []
