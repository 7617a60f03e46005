"""Repairs are checked by training: each case of `trainings/` is trained before and after `apply`.

A case is written as those of rules (tests/codemods/tools.py), on the prelude `trained`, with one more line at its
head: how the model trains with checkpointing on, non-reentrant and reentrant, on each side.

    -# trains: 1 | 1
    +# trains: 2 | 2

That is how often each block runs in a step, `wrong` if gradients differ from those without checkpointing, or an error.
What `apply` leaves as it is (`.noop.py`) has one such line.
"""

from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PretrainedConfig

from ckpt_surgery.static.snapshot import RULE_CODES
from tests.codemods.tools import FOO, check_transformed, files_of, sides, tree

pytestmark = [pytest.mark.both, pytest.mark.torch]
HERE = Path(__file__).parent / "trainings"
CASES = sorted(path for path in HERE.iterdir() if path.is_file())
_TRAINS = re.compile(r"# trains: (\S+) \| (\S+)\n")


def sentence(case: Path) -> str:
    return case.name.removesuffix(".diff").removesuffix(".noop.py").replace("_", " ")


def side(text: str) -> tuple[list[str], str]:
    """Return the code of one side of a case, and how it trains."""
    match = _TRAINS.match(text)
    assert match, "`# trains: ... | ...` stands first"
    return [*match.groups()], text[match.end() :]


def step(model: Any) -> tuple[dict[str, Tensor], set[int]]:
    """Take a step; return the gradients and the runs of the blocks."""
    runs: dict[int, int] = {}

    def count(module: torch.nn.Module, _: object) -> None:
        if hasattr(module, "proj"):
            runs[id(module)] = runs.get(id(module), 0) + 1

    hook = register_module_forward_pre_hook(count)
    model.zero_grad()
    inputs = torch.linspace(-1, 1, 24).reshape(2, 3, 4).requires_grad_()
    try:
        model(inputs).pow(2).sum().backward()
    finally:
        hook.remove()
    parameters = {"inputs": inputs, **dict(model.named_parameters())}
    gradients = {name: torch.zeros(1) if part.grad is None else part.grad for name, part in parameters.items()}
    return gradients, {*runs.values()}


def switch_on(model: Any, *, reentrant: bool) -> None:
    """Switch checkpointing on as transformers does, or by the flags of other models."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    else:
        for module in model.modules():
            module.gradient_checkpointing = True


def trains(path: Path, *, reentrant: bool) -> str:
    """Say how the model of a file trains."""
    torch.manual_seed(0)
    model = runpy.run_path(str(path))["FooModel"](PretrainedConfig()).train()
    expected, _ = step(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        switch_on(model, reentrant=reentrant)
        try:
            made, runs = step(model)
        except Exception as error:
            return type(error).__name__
    same = all(torch.allclose(made[name], value) for name, value in expected.items())
    return "/".join(map(str, sorted(runs))) if same else "wrong"


@pytest.mark.parametrize("case", CASES, ids=sentence)
def test_a_model_trains(tmp_path: Path, case: Path) -> None:
    text = case.read_text(encoding="utf-8")
    before, after = sides(text) if case.suffix == ".diff" else (text, text)
    before_trains, before = side(before)
    after_trains, after = side(after)
    files = tree(tmp_path / "before", files_of(before)[1])
    assert [trains(files / FOO, reentrant=mode) for mode in (False, True)] == before_trains
    select = RULE_CODES if case.suffix == ".diff" else ()  # a branch that works goes only where its rule is named
    check_transformed(tmp_path / "after", before, after, select=select)
    assert [trains(tmp_path / "after" / FOO, reentrant=mode) for mode in (False, True)] == after_trains


def test_repaired_models_recompute() -> None:
    repaired = [side(sides(case.read_text(encoding="utf-8"))[1])[0] for case in CASES if case.suffix == ".diff"]
    assert repaired
    assert all(trained == ["2", "2"] for trained in repaired)
