"""Notebooks: findings in their cells, what is left blank, and where a finding is."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from ckpt_surgery import apply, check
from ckpt_surgery.errors import OptionError
from ckpt_surgery.guarding.run_script import run_script
from ckpt_surgery.static.notebooks import python_of

MAGIC = "%pip install transformers\nfiles = !ls\nmodel?\nimport torch\n"
MODEL = """\
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("a")
model.gradient_checkpointing_enable()
model.eval()
"""
LOOP = "for batch in data:\n    model(**batch).loss.backward()\n"


def notebook(*cells: str) -> str:
    code = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "# Title"}, *code]})


def test_a_finding_says_the_cell_and_the_line_in_it(tmp_path: Path) -> None:
    place = tmp_path / "train.ipynb"
    place.write_text(notebook(MAGIC, MODEL, "%%bash\nls | wc\n", LOOP))
    for _ in range(2):  # the second comes from the cache
        result = check(place, jobs=1)
        (finding,) = result.findings
        assert (finding.code, finding.path, finding.line) == ("CKPT107", f"{place}:cell 2", 3)
        assert (result.problems, finding.repairs) == ((), ())
        assert "model.eval(...) on line 4 of cell 2 the model" in finding.message
    place.write_text(notebook(MODEL.replace("enable()", "enable()  # ckpt: ignore[CKPT107] evaluated"), LOOP))
    assert check(place, jobs=1).findings == ()


def test_magics_and_shell_lines_are_blank_and_python_is_as_it_was() -> None:
    text = python_of(notebook(MAGIC, "%%time\nx = 1\n", "y = ('%s'\n% x)", "%%writefile a\nfor\n", "if x:\n  !ls\n"))
    ast.parse(text)
    cells = text.split("# %% code cell")
    assert cells[1] == " 1\npass\nfiles = None\npass\nimport torch\n\n"
    assert "x = 1" in cells[2]
    assert cells[3:] == [" 3\ny = ('%s'\n% x)\n", " 4\n\n", " 5\nif x:\n  pass\n\n"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "is not a notebook of format 4"),
        ("{", "is not a notebook of format 4"),
        (notebook("x = 1", "\nfor"), "code cell 2, line 2 does not parse"),
    ],
)
def test_what_is_no_notebook_or_no_python_is_a_problem(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "a.ipynb").write_text(text)
    (problem,) = check(tmp_path / "a.ipynb", jobs=1).problems
    assert why in problem.message


def test_a_walk_passes_over_notebooks_and_apply_writes_none(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text(notebook(MODEL, LOOP))
    assert (check(tmp_path, jobs=1).files, check(tmp_path, jobs=1).problems) == (0, ())
    (problem,) = apply(tmp_path / "a.ipynb", jobs=1).problems
    assert "is a notebook: `check` reads it" in problem.message


def test_run_says_what_to_do_with_a_notebook() -> None:
    with pytest.raises(OptionError, match=r"train\.ipynb is a notebook: put `with guard\(model\):` around"):
        run_script("train.ipynb", [], lambda error: None)
