"""Copies and pickles of a guarded model train as unguarded ones, and the guard does not count them."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import guard, wrap_blocks
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.guarding.test_guard import train
from tests.measure.toys import Layer, SureLayer, model_of, values

pytestmark = [pytest.mark.both, pytest.mark.torch]


def pickled(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
@pytest.mark.parametrize("begun", [False, True], ids=["between steps", "in a step"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_copy_is_that_of_a_model_without_a_guard(
    duplicate: Callable[[Any], Any], begun: bool, wrapped: bool
) -> None:
    def run(guarded: bool) -> tuple[list[float], list[float], Any]:
        model = model_of(Layer, SureLayer, SureLayer)
        if wrapped:
            wrap_blocks(model)
        else:
            switch_checkpointing(model, "non_reentrant")
        watching = guard(model, on_fault="raise", every=1) if guarded else None
        train(model, 1)
        if begun:
            model(**values())
        twin = duplicate(model)
        losses = train(twin, 4)
        if guarded:
            with guard(twin, on_fault="raise", every=1) as other:
                losses += train(twin, 4)
                assert (other.steps, other.report().proved) == (4, 3)
        else:
            losses += train(twin, 4)
        own = train(model, 4)
        return losses, own, watching.report() if watching else None

    (losses, own, report), (bare_losses, bare_own, _) = run(True), run(False)
    assert (losses, own) == (bare_losses, bare_own)
    assert (report.steps, report.proved) == (5, 3)
    assert [row.counts for row in report.blocks] == [(1, 1)] * 3
