"""Reword every message, and findings, repairs, verdicts, causes and exit codes stay the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rewording import is_sentence

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PLANTED = """
import sys
from types import ModuleType
from tests.rewording import Capitals
import ast

def run(source):
    module = ModuleType("planted")
    exec(compile(ast.fix_missing_locations(Capitals().visit(ast.parse(source))), "planted", "exec"), vars(module))
    return module.decide()

print(run(sys.argv[1]))
"""


def decided(words: str, half: str) -> dict[str, Any]:
    """Run the script in a separate process; return what it says."""
    command = [sys.executable, "-m", "tests.rewording_script", words, half]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compare(half: str) -> None:
    """Run the half with the usual words and in capitals: messages differ, decisions do not."""
    usual, capitals = decided("usual", half), decided("capitals", half)
    pairs = zip(usual["messages"], capitals["messages"], strict=True)
    assert sum(one != other for one, other in pairs) > len(usual["messages"]) / 2, "hardly a message reads differently"
    for name, decision in usual["decisions"].items():
        assert capitals["decisions"][name] == decision, name
    assert capitals["decisions"].keys() == usual["decisions"].keys()


def test_findings_repairs_and_exit_codes_do_not_depend_on_wording() -> None:
    compare("static")


@pytest.mark.torch
def test_verdicts_causes_and_surgeries_do_not_depend_on_wording() -> None:
    compare("live")


@pytest.mark.parametrize(
    "decision",
    [
        "'is never checkpointed' in message",
        "message.startswith('the block is')",
        "message == 'the block is never checkpointed'",
    ],
)
def test_a_decision_that_reads_a_message_is_seen(decision: str) -> None:
    source = f"message = 'the block is never checkpointed'\ndef decide():\n    return {decision}\n"
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, source], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
    module: dict[str, Any] = {}
    exec(source, module)
    assert module["decide"]() is True


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("is checkpointed by an inline branch", True),
        (" is passed by keyword, and its gradient is lost", True),
        ("CKPT003", False),
        ("gradient_checkpointing", False),
        ("    from transformers import x as an alias", False),
    ],
)
def test_what_counts_as_a_sentence(text: str, answer: bool) -> None:
    assert is_sentence(text) is answer
