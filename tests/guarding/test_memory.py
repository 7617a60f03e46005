"""The bytes that blocks keep on a device that counts, here with a fake counter; a guard frees what it kept."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor

from ckpt_surgery import guard
from ckpt_surgery.guarding import memory
from ckpt_surgery.guarding.memory import LeftBytes, allocated, peaks
from ckpt_surgery.guarding.witnessed_call import WitnessedCall
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.runtime.tools.containers import tensors
from tests.guarding.test_guard import train
from tests.measure.toys import Layer, model_of, values

pytestmark = [pytest.mark.both, pytest.mark.torch]


def test_a_cpu_counts_nothing_and_what_blocks_keep_follows_from_the_proof() -> None:
    assert allocated(torch.device("cpu")) is None
    model = model_of(Layer, Layer)
    switch_checkpointing(model, "non_reentrant")
    assert peaks(model) == {}
    model.layers[1].eval()
    with guard(model, on_fault="collect") as watching:
        train(model)
        report = watching.report()
    recomputed, whole = (row.memory for row in report.blocks)
    assert recomputed is not None
    assert whole is not None
    assert recomputed[0] == recomputed[1] > 0
    assert recomputed[2] > 0
    assert whole[0] > whole[1]
    assert whole[2] == 0


def test_a_device_that_counts_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = iter(range(0, 10**6, 1000))
    monkeypatch.setattr(memory, "allocated", lambda *_: next(reads))
    model = model_of(Layer, Layer)
    switch_checkpointing(model, "non_reentrant")
    with guard(model) as watching:
        train(model, 4)
        kept = [row.measured for row in watching.report().blocks]
        over = [row.memory for row in watching.report().blocks]
        assert "not kept" in str(watching.report())
    for measured, (left, best, _) in zip(kept, filter(None, over), strict=True):
        assert isinstance(measured, LeftBytes)
        assert measured.kept == 1000
        assert left - best == 1000 - measured.returned, "what is left besides the results is too much"


def witnessed_calls() -> list[WitnessedCall]:
    return [thing for thing in gc.get_objects() if isinstance(thing, WitnessedCall)]


@pytest.mark.parametrize("mode", ["reentrant", "non_reentrant"])
def test_what_a_proof_has_kept_goes_with_its_step(mode: Mode) -> None:
    # Without a garbage collection: what is in a cycle would stay for many steps.
    model = model_of(Layer, Layer)
    switch_checkpointing(model, mode)
    left = []
    gc.collect()
    gc.disable()
    try:
        with guard(model, every=1) as watching:
            train(model, 4, lambda _: left.append(len(witnessed_calls())))
            assert watching.report().proved == 2
    finally:
        gc.enable()
    assert max(left) <= 1, "the one whose graph the last loss holds"


def test_results_that_a_hook_of_the_model_keeps_hold_no_call() -> None:
    # The recompute calls the hook again, and nobody takes what that one keeps.
    def run() -> None:
        model = model_of(Layer, Layer, Layer)
        switch_checkpointing(model, "reentrant")
        kept: list[Tensor] = []
        model.layers[1].register_forward_hook(lambda _, args, output: kept.extend(tensors(output)))
        with guard(model, on_fault="collect"):
            for _ in range(3):
                loss = next(tensors(model(**values()))).sum() + kept.pop().square().sum()
                loss.backward()  # type: ignore[no-untyped-call]

    before = witnessed_calls()  # of other tests
    run()
    gc.collect()
    assert [call for call in witnessed_calls() if call not in before] == []
