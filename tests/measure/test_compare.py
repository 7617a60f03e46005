"""Every check of `compare` fails on its own fault and passes without it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn

from ckpt_surgery.measure.block_entries import Entries
from ckpt_surgery.measure.compare import MANY_ENTRIES, Verdict, compare, noise_floors
from ckpt_surgery.measure.cost import LEAST_SAVING, MOST_WORK, WORTH_SAVING, cost_of
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.meter import FlopCount
from ckpt_surgery.measure.observed_calls import CallFacts
from ckpt_surgery.measure.record import MemoryRecord, RunRecord, StepError, StepPart
from ckpt_surgery.measure.results import MODES, Fault, Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.verify import verify
from tests.measure.toys import (
    CallsForward,
    Layer,
    PlainLayer,
    model_of,
    run,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]

both_modes = pytest.mark.parametrize("mode", MODES)


def levels(verdict: Verdict) -> list[str]:
    return [fault.level for fault in verdict.faults]


def only(verdict: Verdict) -> Fault:
    (fault,) = verdict.faults
    return fault


@both_modes
def test_a_healthy_model_passes_with_bit_equal_gradients(mode: Mode) -> None:
    model = model_of(Layer, Layer)
    reference, checkpointed = run(model), run(model, mode)
    verdict = compare(reference, checkpointed, floors={}, tolerance=0.0)
    assert (verdict.ok, verdict.faults, verdict.error) == (True, (), 0.0)
    assert (verdict.lost, verdict.gained, verdict.wrong) == ((), (), ())
    assert verdict.errors == dict.fromkeys(reference.gradients, 0.0)
    assert reference.entries == {"0": Entries(1, 0), "1": Entries(1, 0)}
    assert checkpointed.entries == {"0": Entries(1, 1), "1": Entries(1, 1)}
    assert checkpointed.memory.kept < reference.memory.kept


@cache
def healthy_pair() -> tuple[RunRecord, RunRecord]:
    model = model_of(Layer, Layer)
    return run(model), run(model, "non_reentrant")


def judged(before: Mapping[str, Any], after: Mapping[str, Any]) -> Verdict:
    """Compare two healthy records in which these fields are others."""
    reference, checkpointed = healthy_pair()
    return compare(dataclasses.replace(reference, **before), dataclasses.replace(checkpointed, **after))


def second(reference: Entries | None, checkpointed: Entries, **calls: Any) -> Verdict:
    """Compare records in which the second of two blocks was entered as this says, and called with these facts."""
    before, after = healthy_pair()
    known = {**before.calls, "1": dataclasses.replace(before.calls["1"], **calls)}
    seen = {"entries": {**before.entries, "1": reference}, "calls": known} if reference else {}
    return judged(seen, {"entries": {**after.entries, "1": checkpointed}})


def test_a_block_that_runs_another_number_of_times_in_the_forward_is_named() -> None:
    fault = only(second(None, Entries(2, 2)))
    assert (fault.level, fault.subjects, fault.seen) == ("recompute", ("1",), "2")


def test_a_block_that_the_reference_does_not_run_need_not_be_recomputed() -> None:
    assert second(Entries(0, 0), Entries(0, 0), backward_calls=0).ok


@pytest.mark.parametrize("recomputed", [0, 1, 2])
def test_a_direct_forward_is_unseen_in_the_reference_but_recompute_counts(recomputed: int) -> None:
    reference, checkpointed = healthy_pair()
    calls = {name: facts for name, facts in reference.calls.items() if name != "1"}
    before = {"entries": {**reference.entries, "1": Entries(0, 0)}, "calls": calls}
    assert judged(before, {"entries": {**checkpointed.entries, "1": Entries(1, recomputed)}}).ok is (recomputed == 1)


def test_blocks_always_called_through_their_forward_are_not_judged() -> None:
    class Always(CallsForward):
        def run_layers(self, hidden_states: Tensor) -> Tensor:
            for layer in self.layers:
                hidden_states = layer.forward(hidden_states)
            return hidden_states

    reference, checkpointed = (run(model_of(PlainLayer, whole=Always), mode) for mode in (None, MODES[0]))
    assert reference.entries == checkpointed.entries == {"0": Entries(1, 0, direct=True)}
    assert compare(reference, checkpointed).ok


@pytest.mark.parametrize("recomputed", [0, 1, 2, 3])
def test_a_block_is_recomputed_as_often_as_the_backward_came_through_it(recomputed: int) -> None:
    assert second(Entries(3, 0), Entries(3, recomputed), backward_calls=2).ok is (recomputed == 2)


@pytest.mark.parametrize(("change", "ok"), [(0.0, True), (2**-50, True), (2**-40, False), (0.1, False)])
def test_a_buffer_may_differ_by_rounding_and_by_no_more(change: float, ok: bool) -> None:
    mean = torch.tensor([1.0, -0.5, 0.0], dtype=torch.float64)
    assert judged({"buffers": {"mean": mean}}, {"buffers": {"mean": mean + change}}).ok is ok


def test_a_count_may_not_differ_at_all() -> None:
    ours, theirs = ({"buffers": {"count": torch.tensor(count)}} for count in (2**60, 2**60 + 1))
    assert only(judged(ours, theirs)).subjects == ("count",)


@pytest.mark.parametrize("factor", [1 + 1e-6, math.nan])
def test_another_loss_is_a_fault(factor: float) -> None:
    fault = only(judged({}, {"loss": healthy_pair()[1].loss * factor}))
    assert (fault.level, fault.subjects) == ("values", ())
    assert "loss" in fault.expected


def test_a_reference_that_breaks_is_a_separate_fault() -> None:
    fault = only(judged({"error": StepError(StepPart.FORWARD, "KeyError", "0")}, {}))
    assert "without checkpointing" in fault.expected


@pytest.mark.parametrize(("sizes", "expected"), [((0, 4, 4), []), ((4, 4, 4), []), ((0, 4, 8), ["state"])])
def test_a_cache_that_grows_in_the_backward_is_a_fault_of_state(sizes: Any, expected: list[str]) -> None:
    verdict = judged({}, {"cache": {"past_key_values": sizes}})
    assert levels(verdict) == expected
    assert all(fault.subjects == ("input past_key_values",) for fault in verdict.faults)


def test_other_randomness_is_a_fault_of_blocks_that_draw_some() -> None:
    calls = {"0": CallFacts(uses_rng=True, backward_calls=1), "1": CallFacts(uses_rng=False, backward_calls=1)}
    fault = only(judged({"calls": calls}, {"rng_mismatches": ("0", "1")}))
    assert (fault.level, fault.subjects) == ("state", ("0",))
    assert judged({"calls": {}}, {"rng_mismatches": ("0", "1")}).ok


def test_a_backward_that_draws_is_a_fault_where_the_references_does_not() -> None:
    assert only(judged({}, {"rng_moved": True})).level == "state"
    assert judged({"rng_moved": True}, {"rng_moved": True}).ok


MOST_KEPT = 1000 - round(LEAST_SAVING * 800)
MOST_DONE = 300 + round(MOST_WORK * 100)
MOST_DONE_OF_ALL = 300 + round(MOST_WORK * 150)


@pytest.mark.parametrize(
    ("kept", "work", "expected"),
    [
        pytest.param(200, 400, [], id="all that is possible, for one more forward"),
        pytest.param(MOST_KEPT, 400, [], id="enough of what is possible"),
        pytest.param(MOST_KEPT + 1, 400, ["cost"], id="a byte less than that"),
        pytest.param(1000, 300, ["cost"], id="nothing saved"),
        pytest.param(200, MOST_DONE, [], id="as much work as a recompute may be"),
        pytest.param(200, MOST_DONE + 1, ["cost"], id="more work than that"),
        pytest.param(1000, 500, ["cost", "cost"], id="nothing saved, and two recomputes"),
        pytest.param(190, MOST_DONE + 1, [], id="more saved than the blocks hold, and more work"),
        pytest.param(190, MOST_DONE_OF_ALL, [], id="more saved than the blocks hold, and the forward once more"),
        pytest.param(190, MOST_DONE_OF_ALL + 1, ["cost"], id="more work than that whatever is saved"),
    ],
)
def test_memory_and_work_are_judged_by_what_is_possible(kept: int, work: int, expected: list[str]) -> None:
    reference, checkpointed = healthy_pair()
    before = dataclasses.replace(
        reference, memory=MemoryRecord(kept=1000, best=200), flops=FlopCount(forward=150, backward=300, blocks=100)
    )
    after = dataclasses.replace(checkpointed, memory=MemoryRecord(kept=kept), flops=FlopCount(backward=work))
    cost = cost_of(before, after)
    assert (cost.kept_bytes, cost.reference_kept_bytes, cost.best_kept_bytes) == (kept, 1000, 200)
    assert (cost.backward_flops, cost.reference_backward_flops, cost.best_backward_flops) == (work, 300, 400)
    assert levels(compare(before, after)) == expected


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        pytest.param({}, None, id="nothing of it"),
        pytest.param({"held": {"0": 100}}, None, id="a quarter held by one block"),
        pytest.param({"held": {"0": 101}}, FaultKind.KEPT_BYTES, id="more held by one block"),
        pytest.param({"recomputes": (300, 600)}, None, id="half a block and a gradient then"),
        pytest.param({"recomputes": (300, 601)}, FaultKind.RECOMPUTED_BYTES, id="more than that then"),
        pytest.param({"recomputes": (700, 300)}, None, id="less then"),
        pytest.param({"left": 60}, None, id="little left after the backward"),
        pytest.param({"left": 61}, FaultKind.LEFT_BYTES, id="more left after the backward"),
    ],
)
def test_what_is_held_recomputed_and_left_is_judged(changes: dict[str, Any], kind: FaultKind | None) -> None:
    before = MemoryRecord(kept=1000, best=200, held={"0": 400, "1": 400}, left=50)
    after = MemoryRecord(**{"kept": 200, "left": 50, **changes})
    found = judged({"memory": before}, {"memory": after}).faults
    assert [fault.kind for fault in found] == ([] if kind is None else [kind])
    assert all(fault.subjects == ("0",) for fault in found if kind is FaultKind.KEPT_BYTES)


@pytest.mark.parametrize("more", [{"packs": True}, {"functions": ("Scan", "Offloaded")}], ids=["hooks", "a function"])
@pytest.mark.parametrize(("left", "kinds"), [(250, []), (251, [FaultKind.LEFT_BYTES])])
def test_a_model_that_offloads_itself_may_leave_a_pool(left: int, kinds: list[FaultKind], more: Any) -> None:
    before = {"memory": MemoryRecord(kept=1000, best=200, left=50), "functions": ("Scan",)}
    found = judged(before, {"memory": MemoryRecord(kept=200, left=left), **more}).faults
    assert [fault.kind for fault in found] == kinds


def test_no_memory_has_to_be_saved_where_there_is_little_to_save() -> None:
    little = 1000 - round(WORTH_SAVING * 1000)
    for best, expected in ((little, []), (little - 1, ["cost"])):
        before, after = MemoryRecord(kept=1000, best=best), MemoryRecord(kept=1000)
        assert levels(judged({"memory": before}, {"memory": after})) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        pytest.param(1e-9, 0.0, (), id="noise beside zero is equal"),
        pytest.param(0.0, 1e-9, (), id="zero beside noise is equal"),
        pytest.param(1e-3, 0.0, ("lost",), id="a value that vanishes is lost"),
        pytest.param(0.0, 1e-3, ("gained",), id="a value from nowhere is gained"),
        pytest.param(1e-9, None, ("lost",), id="noise that is missing altogether is lost"),
        pytest.param(0.0, None, (), id="zero and missing are the same"),
        pytest.param(None, 1e-3, ("gained",), id="a gradient that only checkpointing has is gained"),
        pytest.param(1e-2, 1.001e-2, ("wrong",), id="one part in a thousand is wrong"),
        pytest.param(1e-2, 1.0001e-2, (), id="one part in ten thousand is float32"),
        pytest.param(1e-3, math.nan, ("wrong",), id="not a number is wrong"),
    ],
)
def test_gradients_are_compared_above_a_noise_floor(
    ours: float | None, theirs: float | None, expected: tuple[str, ...]
) -> None:
    def record(value: float | None) -> RunRecord:
        gradients = {"large": torch.ones(2), "small": None if value is None else torch.tensor([0.0, value])}
        return RunRecord(1.0, gradients)

    verdict = compare(record(ours), record(theirs))
    assert tuple(kind for kind in ("lost", "gained", "wrong") if getattr(verdict, kind) == ("small",)) == expected
    assert [f.level for f in verdict.faults] == ["values" if kind == "wrong" else "set" for kind in expected]
    assert verdict.ok is not bool(expected)


def test_gradients_of_inputs_are_compared_like_those_of_parameters() -> None:
    before = {"input_gradients": {"pixels": torch.ones(2, dtype=torch.float64)}}
    other = {"input_gradients": {"pixels": torch.tensor([1.0, 2.0], dtype=torch.float64)}}
    assert judged(before, other).wrong == ("input pixels",)
    assert judged(before, {}).lost == ("input pixels",)


# A gradient that is zero in theory


NOISY = "classifier.bias"


@cache
def choice() -> tuple[nn.Module, dict[str, Any]]:
    """Build a multiple-choice model: its last bias sums the softmax gradients over the choices to zero."""
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        attention_probs_dropout_prob=0.1,
    )
    torch.manual_seed(0)
    model = transformers.BertForMultipleChoice(config).train()
    model.register_parameter("faint", nn.Parameter(torch.ones(4)))
    tokens = torch.randint(3, 64, (3, 4, 8), generator=torch.Generator().manual_seed(0))
    return model, {"input_ids": tokens, "labels": torch.tensor([0, 2, 1])}


def loss(output: Any) -> Tensor:
    """Add a little of a parameter to the model's loss: its gradient is a millionth of the largest."""
    faint = choice()[0].get_parameter("faint")
    total: Tensor = output.loss + 2e-8 * (faint * torch.arange(1.0, 5.0)).sum()
    return total


@cache
def choices() -> tuple[RunRecord, RunRecord]:
    """Return a run, and the same with other rounding."""
    model, inputs = choice()
    first, second = (run_step(model, inputs, blocks={}, loss=loss, rounding_seed=turn) for turn in (0, 1))
    assert (first.error, second.error) == (None, None)
    return first, second


def largest(gradient: Tensor | None) -> float:
    assert gradient is not None
    return float(gradient.abs().max())


def with_gradient(record: RunRecord, name: str, gradient: Tensor | None) -> RunRecord:
    return dataclasses.replace(record, gradients={**record.gradients, name: gradient})


def test_noise_passes_with_the_measured_floor_and_fails_without_one() -> None:
    reference, repeated = choices()
    for gradient, kind in ((repeated.gradients[NOISY], "wrong"), (torch.zeros(1), "lost")):
        noisy = with_gradient(reference, NOISY, gradient)
        assert compare(reference, noisy, floors=noise_floors(reference, repeated)).ok
        assert getattr(compare(reference, noisy, floors={}), kind) == (NOISY,)


def test_a_lost_small_gradient_is_found_only_with_the_measured_floor() -> None:
    reference, repeated = choices()
    scale = max(map(largest, reference.gradients.values()))
    assert 0.5e-6 < largest(reference.gradients["faint"]) / scale < 2e-6
    faulty = with_gradient(reference, "faint", torch.zeros(4))
    measured = compare(reference, faulty, floors=noise_floors(reference, repeated))
    assert measured.lost == ("faint",)
    assert only(measured).level == "set"
    assert compare(reference, faulty).ok
    assert compare(reference, faulty, floors=noise_floors(reference)).ok
    gone = with_gradient(reference, "faint", None)
    assert compare(reference, gone).lost == ("faint",)  # no gradient at all is no noise


def test_noise_on_both_sides_of_its_floor_is_noise() -> None:
    reference, repeated = choices()
    floors = noise_floors(reference, repeated)
    below = with_gradient(reference, NOISY, torch.full((1,), 0.8 * floors[NOISY].entry))
    above = with_gradient(reference, NOISY, torch.full((1,), 1.2 * floors[NOISY].entry))
    assert compare(below, above, floors=floors).ok
    assert compare(above, below, floors=floors).ok
    far = with_gradient(reference, NOISY, torch.full((1,), 3.0 * floors[NOISY].entry))
    assert compare(below, far, floors=floors).gained == (NOISY,)
    assert compare(far, below, floors=floors).lost == (NOISY,)


def test_a_gradient_slightly_off_everywhere_is_found_among_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(MANY_ENTRIES, generator=generator)
    noise = torch.randn(MANY_ENTRIES, generator=generator) * 0.01
    record, _ = choices()
    reference = with_gradient(record, "faint", gradient)
    floors = noise_floors(reference, with_gradient(record, "faint", gradient + noise))
    scaled = with_gradient(record, "faint", gradient * 1.05)
    assert largest(gradient * 0.05) < floors["faint"].entry
    assert compare(reference, scaled, floors=floors).wrong == ("faint",)
    assert compare(reference, with_gradient(record, "faint", gradient - noise), floors=floors).ok
    few = with_gradient(record, "faint", gradient[:4])
    assert noise_floors(few, with_gradient(record, "faint", (gradient + noise)[:4]))["faint"].norm == math.inf


def test_verify_is_not_flipped_by_a_gradient_that_is_zero_in_theory() -> None:
    report = verify(*choice())
    assert report.ok, str(report)
