"""After an exception the next step trains right, and so does another model, while the traceback is held.

A notebook and a debugger hold it, and torch's own checkpointing then leaves its hooks for saved tensors in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.runtime.surgery import checkpointing
from tests.zoo import state_toys as toys
from tests.zoo.state_toys import ScalingBlock, Stack, same, stack, train, two

pytestmark = [pytest.mark.torch]

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "save": {"save": "matmul"},
    "offload": {"offload": "cpu"},
    "save and offload": {"save": "matmul", "offload": "cpu", "save_offload": True},
}
ways = pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))
checks = pytest.mark.parametrize("check", ["first", "never"])


class FailingBlock(ScalingBlock):
    """A block that raises `error` between its operators once `calls_left` is used up."""

    error: BaseException | None = None
    calls_left = 0

    def scale(self) -> Any:
        if self.error is not None:
            FailingBlock.calls_left -= 1
            if FailingBlock.calls_left < 0:
                raise self.error
        return 1.0


class RememberingBlock(ScalingBlock):
    """A block that keeps the exceptions passing through it: those by which torch ends a recompute early."""

    def forward(self, hidden: Tensor) -> Tensor:
        try:
            return super().forward(hidden)
        except BaseException as error:
            HELD.append(error)
            raise


HELD: list[BaseException] = []


@pytest.fixture(autouse=True)
def nothing_is_held_afterwards() -> Iterator[None]:
    yield
    HELD.clear()
    for name in ("last_traceback", "last_value", "last_type"):
        vars(sys).pop(name, None)


def failing(model: Stack, error: BaseException, calls: int) -> None:
    """Train until the error, and hold on to it as an interactive session does."""
    layers: Any = list(model.layers)
    FailingBlock.calls_left = calls
    for layer in layers:
        layer.error = error
    try:
        train(model, steps=1)
    except BaseException as raised:
        HELD.append(raised)
        sys.last_type, sys.last_value, sys.last_traceback = type(raised), raised, raised.__traceback__
    for layer in layers:
        layer.error = None


def trains_right(*models: Stack) -> bool:
    expected = train(stack(two(ScalingBlock)))
    return all(same(train(model), expected) for model in (*models, stack(two(ScalingBlock))))


def healthy(**options: Any) -> Stack:
    model = stack(two(ScalingBlock))
    wrap_blocks(model, **options)
    return model


ERRORS = [torch.OutOfMemoryError("no room"), ValueError("no"), KeyboardInterrupt()]


@ways
@checks
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["forward", "recompute"])
def test_the_next_steps_train_right_after_an_error(
    place: str, error: BaseException, check: Any, options: dict[str, Any]
) -> None:
    model = stack(two(FailingBlock))
    wrap_blocks(model, self_check=check, **options)
    failing(model, error, calls=1 if place == "forward" else 2)
    (held,) = HELD
    if place == "recompute" and isinstance(error, ValueError):
        assert isinstance(held, SurgeryError)
        assert held.__cause__ is error
    else:
        assert held is error
    assert trains_right(model, healthy(**options), healthy())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_torchs_checkpoint_sees_no_error_of_a_forward(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    # Up to torch 2.12 its hooks for saved tensors would stay, as they do without a surgery.
    seen: list[BaseException] = []

    def recording(*args: Any, **kwargs: Any) -> Any:
        try:
            return checkpoint(*args, **kwargs)
        except BaseException as raised:
            seen.append(raised)
            raise

    monkeypatch.setattr(checkpointing, "checkpoint", recording)
    model = stack(two(FailingBlock))
    wrap_blocks(model)
    failing(model, error, calls=1)
    assert [error] == HELD
    assert seen == []


@ways
@checks
def test_an_early_stop_that_is_held_does_no_harm(check: Any, options: dict[str, Any]) -> None:
    model = stack(two(RememberingBlock))
    wrap_blocks(model, self_check=check, **options)
    assert trains_right(model)
    assert {type(error).__name__ for error in HELD} == {"_StopRecomputationError"}
    assert trains_right(model, healthy(**options))


@ways
def test_a_refusal_that_is_held_does_no_harm(options: dict[str, Any]) -> None:
    model = stack(two(toys.DriftingBlock))
    surgery = wrap_blocks(model, **options)
    with pytest.raises(SurgeryError, match="gave a different result") as held:
        train(model)
    HELD.append(held.value)
    surgery.undo()
    assert trains_right(healthy(**options))
