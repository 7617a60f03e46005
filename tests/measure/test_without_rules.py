"""The measuring half works without the static rules, and without libcst and platformdirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_surgery.codemods import rule_of
from ckpt_surgery.measure import wording
from ckpt_surgery.measure.kinds import CauseKind

ROOT = Path(__file__).parents[2]
WITHOUT = "import sys; sys.modules |= dict.fromkeys(['libcst', 'platformdirs', 'ckpt_surgery.codemods'])\n"
VERDICT = """
import json
from ckpt_surgery import verify
from tests.measure.toys import PlainLayer, model_of, values
report = verify(model_of(PlainLayer, PlainLayer), values())
print(json.dumps(sorted({(fault.rule, fault.cause) for _, fault in report.faults})))
"""
CALLS = """
import ckpt_surgery as cs
from transformers import LlamaForCausalLM
model = cs.tiny_model(LlamaForCausalLM).model
inputs = cs.tiny_inputs(model)
print(cs.explain(model, inputs), cs.plan(model, inputs, "1 GB"))
with cs.guard(model, every=1):
    model.gradient_checkpointing_enable()
    model(**inputs).loss.backward()
cs.wrap_blocks(model).undo()
cs.long_context(model)
from ckpt_surgery.cli.main import main
raise SystemExit(main(["run", "step.py"]))
"""


def test_each_code_is_that_of_a_rule() -> None:
    assert set(wording.RULES) < set(CauseKind)
    assert all(rule_of(code).code == code for code in wording.RULES.values())


@pytest.mark.both
@pytest.mark.torch
def test_a_verdict_has_its_cause_in_words() -> None:
    sentence = "PlainLayer is not a GradientCheckpointingLayer, so nothing checkpoints it."
    assert json.loads(run(VERDICT, ROOT)) == [["CKPT001", sentence]]


@pytest.mark.torch
def test_what_measures_watches_and_repairs_a_model_works(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("print('the script ran')", encoding="utf-8")
    assert "the script ran" in run(CALLS, tmp_path)


def run(code: str, folder: Path) -> str:
    """Run Python with the rules and their packages hidden; return its output."""
    command = [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {WITHOUT}{code}"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
