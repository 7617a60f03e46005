"""The pytest plugin: in separate runs of pytest, and in runs in this process that share a fork server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.survey.worker_pool import WorkerPool
from tests.processes import pool_beside

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., pytest.RunResult]
PLAN = """
from pathlib import Path
import time
from tests.measure import toys

class Unsupported(toys.Model):
    supports_gradient_checkpointing = False

class Endless(toys.PlainLayer):
    def forward(self, hidden_states):
        time.sleep(10**6)

def healthy():
    with Path("built").open("a") as built:
        built.write("once ")
    return toys.model_of(toys.Layer, toys.Layer), toys.values()

def broken():
    return toys.model_of(toys.PlainLayer, toys.PlainLayer), toys.values()

def keyword():
    layers = (toys.TwoStreamLayer,) * 2
    return toys.model_of(*layers, whole=toys.ResidualByKeyword), toys.values()

def unsupported():
    return toys.model_of(toys.PlainLayer, whole=Unsupported), toys.values()

def unclaimed():
    return toys.model_of(toys.NormLayer, whole=Unsupported), toys.values()

def impossible():
    raise OSError("there is no model here")

def endless():
    return toys.model_of(Endless, Endless), toys.values()
"""
CONFTEST = """
import sys

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"torch was loaded: {'torch' in sys.modules}")
"""
TEST_FILE = """
def test_the_plugin_is_installed(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("ckpt_surgery")
"""
FIXTURE = """
import plan
from tests.measure import toys

def test_healthy(verify_checkpointing):
    assert verify_checkpointing(*plan.healthy(), modes=["reentrant"]).ok

def test_broken(verify_checkpointing):
    verify_checkpointing(*plan.broken(), levels=["recompute"])
"""


@pytest.fixture
def plan(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Make a folder with models to verify, and nothing else."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pytester.makepyfile(plan=PLAN)
    return pytester


def run(plan: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return plan.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=120)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """Start a fork server beside the same models."""
    with pool_beside("plan", PLAN, tmp_path_factory.mktemp("models")) as pool:
        yield pool


@pytest.fixture
def run_here(plan: pytest.Pytester, shared: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs pytest in this process."""
    monkeypatch.setattr(shared, "close", lambda: None)
    monkeypatch.setattr("ckpt_surgery.survey.worker_pool.WorkerPool", lambda: shared)
    return lambda *arguments: plan.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_models_run_on_a_device_that_is_there(run_here: Run) -> None:
    result = run_here("--ckpt-models", "plan:healthy", "--ckpt-device", "cpu")
    result.assert_outcomes(passed=2)
    result = run_here("--ckpt-models", "plan:healthy", "--ckpt-device", "meta")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("ERROR: --ckpt-models: no model can run on meta here *")


@pytest.mark.both
def test_one_test_per_class_and_mode_runs_without_a_test_file(plan: pytest.Pytester) -> None:
    models = "plan:healthy,plan:broken,plan:keyword,plan:unsupported,plan:unclaimed,plan:impossible,GPTBigCodeModel"
    plan.makeconftest(CONFTEST)
    result = run(plan, "--ckpt-models", models, "-v", "-rs")
    output = result.stdout.str()
    outcomes = dict(re.findall(r"^ckpt::(\S+) (PASSED|FAILED|SKIPPED)", output, re.MULTILINE))
    big_code = "FAILED" if transformers_major() == 4 else "PASSED"
    assert outcomes == {
        f"{name}[{mode}]": result
        for name, results in {
            "plan:broken": ("FAILED", "FAILED"),
            "plan:healthy": ("PASSED", "PASSED"),
            "plan:impossible": ("SKIPPED", "SKIPPED"),
            "plan:keyword": ("PASSED", "FAILED"),
            "plan:unsupported": ("SKIPPED", "SKIPPED"),
            "plan:unclaimed": ("SKIPPED", "SKIPPED"),
            "GPTBigCodeModel": (big_code, big_code),
        }.items()
        for mode, result in zip(("non_reentrant", "reentrant"), results, strict=True)
    }
    assert "OSError: there is no model here" in output
    assert "Unsupported says that it does not support gradient checkpointing" in output
    assert "PlainLayer is not a GradientCheckpointingLayer, so nothing checkpoints it. [CKPT001]" in unwrapped(output)
    assert "- non_reentrant, recompute: layers.0" in output
    assert "non_reentrant and reentrant" not in output
    assert "Traceback" not in output
    assert "pytest_plugin.py:" not in output.partition("short test summary")[0]
    assert "torch was loaded: False" in output
    assert Path("built").read_text(encoding="utf-8") == "once "


def test_xdist_distributes_a_selection_of_them(plan: pytest.Pytester) -> None:
    plan.makepyfile(test_beside="def test_beside():\n    raise AssertionError\n")
    result = run(plan, "--ckpt-models", "plan:healthy,plan:broken,plan:keyword", "-n", "2", "-k", "not broken", "-v")
    result.assert_outcomes(passed=3, failed=1)
    assert "FAILED ckpt::plan:keyword[reentrant]" in result.stdout.str()


def test_test_files_run_too_where_the_command_line_names_some(plan: pytest.Pytester, run_here: Run) -> None:
    plan.makepyfile(test_beside=TEST_FILE)
    result = run_here("--ckpt-models", "plan:healthy", "-k", "reentrant and not non_reentrant or beside", ".")
    result.assert_outcomes(passed=2, deselected=1)


def test_a_model_that_hangs_is_skipped_with_the_time_limit_as_reason(run_here: Run) -> None:
    result = run_here("--ckpt-models", "plan:endless", "--ckpt-timeout", "3", "-rs")
    result.assert_outcomes(skipped=2)
    assert "does not end within 3 s" in unwrapped(result.stdout.str())


def test_the_default_timeout_is_that_of_every_survey(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getoption("--ckpt-timeout") == TIMEOUT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("plan:healthy", "--ckpt-timeout", "nan"),
            "--ckpt-timeout nan is not a time limit: give seconds from 0.1 to",
        ),
        (("gpt_bigcodes", "-n", "2"), "did you mean gpt_bigcode, GPTBigCode"),
        ((" , ",), "--ckpt-models is empty: give model types or classes separated by commas, or `all`"),
    ],
    ids=["no limit", "unknown, with xdist", "empty"],
)
def test_an_empty_or_unknown_name_is_a_usage_error(run_here: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run_here("--ckpt-models", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_all_means_every_class_of_the_installed_release(run_here: Run) -> None:
    result = run_here("--ckpt-models", "all", "--collect-only", "-q")
    names = [line for line in result.outlines if line.startswith("ckpt::")]
    assert len(names) == len(set(names)) > 800
    assert {"ckpt::BertModel[reentrant]", "ckpt::MixtralForCausalLM[router_loss-reentrant]"} <= set(names)


def test_the_fixture_returns_the_report_or_fails_with_it(plan: pytest.Pytester, run_here: Run) -> None:
    plan.makepyfile(test_fixture=FIXTURE)
    result = run_here()
    result.assert_outcomes(passed=1, failed=1)
    assert "PlainLayer is not a GradientCheckpointingLayer" in unwrapped(result.stdout.str())
    assert "def assert_checkpointing" not in result.stdout.str()


def test_loading_the_plugin_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, ckpt_surgery.testing.pytest_plugin; print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == ""


def transformers_major() -> int:
    import transformers

    return int(transformers.__version__.split(".")[0])


def unwrapped(text: str) -> str:
    return re.sub(r"(\nE? +|\s+)", " ", text)
