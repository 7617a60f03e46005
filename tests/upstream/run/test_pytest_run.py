"""Each test's outcome, from real runs of pytest: nothing that did not run counts as passed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.pytest_run import PytestRun, run_pytest

PYTHON = PythonInterpreter(Path(sys.executable))
TESTS = """\
import unittest

import pytest


class Common:
    def test_plain(self):
        pass

    def test_parts(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertLess(number, 2)


class OwnTest(Common, unittest.TestCase):
    @unittest.skip("not today")
    def test_skip(self):
        pass

    @pytest.mark.xfail(reason="known")
    def test_xfail(self):
        assert False

    @pytest.mark.xfail(reason="known")
    def test_xpass(self):
        pass


class SetUpTest(unittest.TestCase):
    def tearDown(self):
        raise ValueError("the end")

    def test_it(self):
        pass


@pytest.mark.parametrize("name", ["a.b", "a::b"])
def test_function(name):
    pass
"""
FILE = "tests/models/oak/test_modeling_oak.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tree whose tests end in every way."""
    top = tmp_path_factory.mktemp("tree")
    for path, text in {
        FILE: TESTS,
        "tests/models/oak/test_modeling_far.py": "import no_such_module_1\n",
        "tests/models/oak/test_modeling_odd.py": "1 / 0\n",
        "tests/models/oak/test_modeling_none.py": "x = 1\n",
        "tests/models/oak/__init__.py": "",
        "tests/models/__init__.py": "",
        "tests/__init__.py": "",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(text)
    return top


@pytest.fixture(scope="module")
def run(tree: Path) -> PytestRun:
    return run_pytest(PYTHON, tree, ["tests/models/oak"], options=["--continue-on-collection-errors"])


def test_each_test_has_its_id_and_its_outcome(run: PytestRun) -> None:
    assert {name.removeprefix("tests/models/oak/"): result.outcome for name, result in run.results.items()} == {
        "test_modeling_far.py": "error",
        "test_modeling_odd.py": "error",
        "test_modeling_oak.py::OwnTest::test_parts": "failed",
        "test_modeling_oak.py::OwnTest::test_plain": "passed",
        "test_modeling_oak.py::OwnTest::test_skip": "skipped",
        "test_modeling_oak.py::OwnTest::test_xfail": "xfailed",
        "test_modeling_oak.py::OwnTest::test_xpass": "passed",
        "test_modeling_oak.py::SetUpTest::test_it": "failed",
        "test_modeling_oak.py::test_function[a.b]": "passed",
        "test_modeling_oak.py::test_function[a::b]": "passed",
    }
    assert run.problem is None
    assert run.results[f"{FILE}::OwnTest::test_skip"].reason == "not today"


def test_the_command_is_what_one_would_type(run: PytestRun, tree: Path) -> None:
    assert run.ran.command == "python -m pytest tests/models/oak"
    assert (run.ran.code, run.ran.ok) == (1, False)
    assert str(tree) not in run.ran.output
    assert "report.xml" not in run.ran.output


def test_names_select_tests(tree: Path) -> None:
    pytest_run = run_pytest(PYTHON, tree, [FILE], names="plain or skip")
    assert [name.rpartition("::")[2] for name in pytest_run.results] == ["test_plain", "test_skip"]
    assert pytest_run.ran.command == f"python -m pytest {FILE} -k 'plain or skip'"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("far", "reached no test (exit code 2): ModuleNotFoundError: No module named 'no_such_module_1'"),
        ("odd", "reached no test (exit code 2): ZeroDivisionError: division by zero"),
        ("none", "selects no test"),
    ],
)
def test_a_run_without_a_test_says_why(tree: Path, file: str, reason: str) -> None:
    pytest_run = run_pytest(PYTHON, tree, [f"tests/models/oak/test_modeling_{file}.py"])
    assert pytest_run.problem == f"`{pytest_run.ran.command}` {reason}"


def test_a_run_that_is_cut_off_has_no_results(tree: Path) -> None:
    pytest_run = run_pytest(PYTHON, tree, [FILE], timeout=0.01)
    assert (pytest_run.results, pytest_run.problem) == (
        {},
        f"`{pytest_run.ran.command}` did not end in time and was stopped",
    )
