"""After the first steps exact sums are compared: at once on a CPU, and on a device after the backward."""

from __future__ import annotations

import warnings
import weakref
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery import SurgeryError, SurgeryWarning, wrap_blocks
from ckpt_surgery.runtime.self_check import digests, quick_check
from ckpt_surgery.runtime.self_check.schedule import FIRST_STEPS
from tests.zoo import state_toys as toys

pytestmark = [pytest.mark.torch]

stack, train, same, two = toys.stack, toys.train, toys.same, toys.two


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare sums as on a device that may not have computed them yet."""
    monkeypatch.setattr(digests, "_is_readable", lambda tensor: False)


def quiet() -> toys.Stack:
    model = stack(lambda: [toys.DriftingBlock(size=0.0) for _ in range(3)])
    wrap_blocks(model, self_check="always")
    train(model, steps=FIRST_STEPS)
    return model


def drifting(model: toys.Stack, size: float = 0.1) -> None:
    layers: Any = model.layers
    layers[1].size = size


def test_what_can_be_read_is_reported_in_its_step() -> None:
    model = quiet()
    drifting(model)
    with pytest.raises(
        SurgeryError, match=r"recomputing DriftingBlock layers\.1 gave .*: a tensor of 16x6 float32 in"
    ):
        train(model, steps=1)


@pytest.mark.usefixtures("as_on_a_device")
def test_what_a_device_compares_is_reported_in_the_next_step() -> None:
    model = quiet()
    drifting(model)
    train(model, steps=1)
    with pytest.raises(SurgeryError, match=r"recomputing DriftingBlock layers\.1 gave .* of its magnitude"):
        train(model, steps=1)


@pytest.mark.usefixtures("as_on_a_device")
def test_all_sums_are_read_once_after_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quiet()
    read: list[int] = []

    def all_equal(pairs: Any) -> bool:
        read.append(len(pairs))
        return True

    monkeypatch.setattr(quick_check, "_all_equal", all_equal)
    train(model, steps=2)
    assert len(read) == 2
    assert min(read) >= 3 * 3


@pytest.mark.usefixtures("as_on_a_device")
def test_what_happens_once_is_reported_as_such() -> None:
    model = quiet()
    drifting(model)
    train(model, steps=1)
    drifting(model, 0.0)
    with pytest.warns(SurgeryWarning, match=r"DriftingBlock layers\.1 gave other bits .* in the step before") as told:
        train(model, steps=1)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, steps=2)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("size", [1e-5, 1e-2])
def test_noise_is_looked_at_closely_from_then_on(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = stack(two(partial(toys.NoisyBlock, 0.0)))
    surgery = wrap_blocks(model, self_check="always")
    train(model, steps=FIRST_STEPS)
    layers: Any = model.layers
    layers[0].size = size
    train(model, steps=1)
    if size == 1e-2:
        with pytest.raises(SurgeryError, match=r"NoisyBlock layers\.0 .* it makes something else each time"):
            train(model, steps=1)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, steps=3)
    schedules = [forward.schedule for forward in surgery._forwards.values()]
    assert [schedule.due([]) for schedule in schedules] == ["close", "quick"]


def test_noise_on_a_processor_of_several_threads_is_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = stack(two(partial(toys.NoisyBlock, 0.0)))
    wrap_blocks(model, self_check="always")
    train(model, steps=FIRST_STEPS)
    layers: Any = model.layers
    layers[0].size = 1e-5
    train(model, steps=3)
    layers[0].size = 1e-2
    with pytest.raises(SurgeryError, match=r"NoisyBlock layers\.0"):
        train(model, steps=1)


@pytest.mark.usefixtures("as_on_a_device")
def test_a_backward_that_was_given_up_leaves_nothing_behind() -> None:
    model = quiet()
    layers: Any = model.layers

    def give_up(gradient: Any) -> None:
        raise KeyboardInterrupt

    hook = layers[0].up.weight.register_hook(give_up)
    with pytest.raises(KeyboardInterrupt):
        train(model, steps=1)
    hook.remove()
    train(model, steps=2)
    assert not quick_check._waiting


def test_what_a_run_saved_is_let_go_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quiet()
    seen: list[Any] = []
    digest = digests.Digest.of

    def noted(held: Any, *others: Any) -> Any:
        seen.extend(weakref.ref(tensor) for tensor in held if tensor.grad_fn is not None)
        return digest(held, *others)

    monkeypatch.setattr(digests.Digest, "of", noted)
    loss = model(torch.ones(2, toys.WIDTH)).sum()
    assert len(seen) > 3
    assert sum(reference() is not None for reference in seen) <= 3  # what one block hands to the next
    loss.backward()
    assert not [reference for reference in seen if reference() is not None]
