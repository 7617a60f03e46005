"""What hard blocks keep, cache, draw and write over several steps is not lost, doubled or held too long.

`test_recompute` has the arguments of blocks in one step.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from tests.measure import toys
from tests.measure.toys import WIDTH, Model, SureLayer, model_of, values
from tests.zoo import hard_toys as hard
from tests.zoo import surgery_toys as own
from tests.zoo.surgery_toys import ONCE, blocks_of, differences, step

pytestmark = [
    pytest.mark.both,
    pytest.mark.torch,
    # the newer release says of the older name only that it is older
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6.*:FutureWarning"),
]

Kind = Callable[[], nn.Module]


def three(kind: Kind, whole: Callable[..., Model] = Model) -> Model:
    return model_of(kind, kind, kind, whole=whole)


def enable(model: Any, **options: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


# What a block returns


@pytest.mark.parametrize("kind", [hard.RowsLayer, hard.FlatLayer, hard.WeightLayer, hard.ComplexLayer])
def test_views_and_complex_results_keep_their_gradient(kind: Kind) -> None:
    model, plain = three(kind, hard.SecondsInTurn), three(kind, hard.SecondsInTurn)
    wrap_blocks(model)
    for seed in range(2):
        expected, record = step(plain, seed=seed), step(model, seed=seed)
        assert differences(record, expected) == []
        assert set(record.entries.values()) == {ONCE}
    assert differences(step(three(kind, hard.WithoutSeconds)), expected) != []


# What a block keeps


def recorded_calls(model: Model) -> int:
    """Count the remembered calls of a model's blocks."""
    gc.collect()
    calls = [thing for thing in gc.get_objects() if type(thing) is RecordedCall]
    return sum(call._state._block in model.layers for call in calls)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "kind", [hard.KeepingLayer, hard.UsingLayer, hard.WindowLayer, hard.WeightNormLayer, hard.SpectralNormLayer]
)
def test_what_a_block_keeps_holds_no_step_before(kind: Kind) -> None:
    model, plain = three(kind), three(kind)
    wrap_blocks(model)
    alive = []
    for seed in range(5):
        assert differences(step(model, seed=seed), step(plain, seed=seed)) == []
        alive.append(recorded_calls(model))
    assert len(set(alive)) == 1


def check_model_inputs(module: nn.Module, recorded: list[Tensor]) -> Callable[..., Any]:
    """Record what the present forward returns, as the decorator of transformers 4 does."""
    forward = module.forward

    def wrapped_forward(*args: Any, **kwargs: Any) -> Any:
        recorded.append(forward(*args, **kwargs))
        return recorded[-1]

    return wrapped_forward


def test_what_transformers_4_records_goes_with_the_step() -> None:
    model = three(SureLayer)
    wrap_blocks(model)
    parts = [next(block.children()) for block in model.layers]
    for seed in range(2):
        recorded: list[Tensor] = []
        for part in parts:
            vars(part)["forward"] = check_model_inputs(part, recorded)
        result = model(**values())
        for part in parts:
            del vars(part)["forward"]
        assert len(recorded) == len(parts)
        assert all(tensor.requires_grad for tensor in recorded)
        references = [weakref.ref(tensor) for tensor in recorded]
        recorded = []
        result.sum().backward()
        del result
        gc.collect()
        assert [reference() for reference in references] == [None] * len(parts), seed


def test_steps_that_somebody_holds_on_to_are_counted() -> None:
    model = three(SureLayer)
    wrap_blocks(model)
    held = []
    for number in range(1, 4):
        held.append(model(**values()))
        assert recorded_calls(model) == 3 * number
    held.clear()
    assert recorded_calls(model) == 0


# What is put in place of a block's forward


# What happens between forward and backward


def gradients(model: Model) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def loss_before_evaluation(model: Model) -> Tensor:
    torch.manual_seed(0)
    loss: Tensor = model(**values()).square().sum()
    model.eval()
    return loss


@pytest.mark.parametrize("kind", [toys.Layer, own.NormedLayer])
def test_evaluation_mode_waits_for_the_recompute(kind: Kind) -> None:
    model, plain = three(kind), three(kind)
    wrap_blocks(model)
    for each in (model, plain):
        loss_before_evaluation(each).backward()  # type: ignore[no-untyped-call]
        assert not any(module.training for module in each.modules())
    assert all(torch.allclose(*grads) for grads in zip(gradients(model), gradients(plain), strict=True))
    assert set(step(model.train()).entries.values()) == {ONCE}


# What a block draws


def raise_rates(model: Model) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3


@pytest.mark.parametrize("kind", [hard.LiteralLayer, hard.NoisyLayer, hard.RaisedLayer])
def test_numbers_drawn_without_kept_state_are_refused(kind: Kind) -> None:
    model, plain = three(kind), three(kind)
    wrap_blocks(model, preserve_rng_state=False)
    if kind is hard.RaisedLayer:
        assert set(step(model).entries.values()) == {ONCE}
        raise_rates(model)
        raise_rates(plain)
    with pytest.raises(SurgeryError, match=r"preserve_rng_state=False and a block drew random numbers: .*unsafe"):
        model(**values())
    wrap_blocks(model, preserve_rng_state="unsafe")
    assert differences(step(model), step(plain)) != []
    wrap_blocks(model)
    assert differences(step(model), step(plain)) == []


def test_unsafe_randomness_ends_with_the_option() -> None:
    model = three(toys.Layer)
    wrap_blocks(model, preserve_rng_state="unsafe")
    enable(model, use_reentrant=False)
    assert set(step(model).entries.values()) == {ONCE}
    enable(model, use_reentrant=False, preserve_rng_state=True)
    with pytest.raises(SurgeryError, match=r"preserve_rng_state=False while dropout of Layer acts at random"):
        enable(model, use_reentrant=False, preserve_rng_state=False)
    assert differences(step(model), step(three(toys.Layer))) == []
    enable(model, use_reentrant=False, preserve_rng_state="unsafe")


# What a block writes


def test_a_buffer_written_in_later_steps_is_written_once() -> None:
    models = [three(hard.AverageLayer) for _ in range(3)]
    wrap_blocks(models[0])
    switch_checkpointing(models[2], "non_reentrant")
    for seed in range(4):
        record, expected, native = (step(model, seed=seed) for model in models)
        assert differences(record, expected) == []
        assert differences(native, expected) != []
    assert [b.tolist() for name, b in models[0].named_buffers() if "average" in name] == [[0.25] * WIDTH] * 3


# What a block makes once


def tables(model: Model) -> list[Tensor]:
    layers: list[Any] = list(blocks_of(model).values())
    return [layer.table for layer in layers]


def test_a_table_that_is_made_once_is_a_constant() -> None:
    model, plain = three(hard.TableLayer), three(hard.TableLayer)
    wrap_blocks(model)
    made: list[Tensor] = []
    for number in range(5):
        assert differences(step(model, seed=number), step(plain, seed=number)) == []
        assert not any(table.requires_grad for table in tables(model))
        made = made or tables(model)
        assert all(one is other for one, other in zip(tables(model), made, strict=True))
    copied = copy.deepcopy(model)
    assert differences(step(copied), step(plain)) == []


# Options


# What leaves the device

ROWS = 64
BYTES = ROWS * WIDTH * 8


@pytest.mark.parametrize("whole", [hard.Containers, hard.InLists])
def test_tensors_in_a_container_leave_the_device(whole: type[hard.Containers]) -> None:
    model, plain, kept = (model_of(*[hard.TupleLayer] * 4, whole=whole) for _ in range(3))
    surgery = wrap_blocks(model, offload="cpu")
    wrap_blocks(kept)
    given = {"values": torch.rand(ROWS, WIDTH, dtype=torch.float64)}
    assert differences(step(model, given), step(plain, given)) == []
    before = copy.copy(surgery.stats)
    assert before is not None
    result, other = model(**given), kept(**given)
    stats = surgery.stats
    assert stats is not None
    assert (stats.tensors - before.tensors, stats.bytes - before.bytes) == (6, 6 * BYTES)
    assert alive(model) == [False, False, True, True], "two tensors in flight and the last block's"
    assert alive(kept) == [True] * 4
    del result, other
    assert alive(model) == alive(kept) == [False] * 4


def alive(model: Model) -> list[bool]:
    assert isinstance(model, hard.Containers)
    return [reference() is not None for reference in model.others]
