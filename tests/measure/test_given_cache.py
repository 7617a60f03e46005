"""The cache that `verify` gives a model: its argument is found by role, and an empty one proves nothing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from torch import Tensor, nn
from transformers import DynamicCache

from ckpt_surgery import verify
from ckpt_surgery.measure.kinds import SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.tiny import tiny_model

pytestmark = pytest.mark.torch


class Plain(nn.Module):
    """A model whose step with a cache breaks under checkpointing: two layers fill it by position."""

    supports_gradient_checkpointing = True

    def __init__(self) -> None:
        super().__init__()
        tiny = tiny_model(transformers.ImageGPTModel)
        self.inner = tiny.model
        self.inputs = {"input_ids": tiny.inputs["input_ids"]}

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any]) -> None:
        self.inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs)

    def gradient_checkpointing_disable(self) -> None:
        self.inner.gradient_checkpointing_disable()

    def run(self, input_ids: Tensor, cache: Any = None) -> Tensor:
        name = "cache" if "cache" in inspect.signature(self.inner.forward).parameters else "past_key_values"
        output: Tensor = self.inner(input_ids=input_ids, **{name: cache}).last_hidden_state
        return output.square().mean()


class Annotated(Plain):
    def forward(self, input_ids: Tensor, keys_so_far: DynamicCache | None = None) -> Tensor:
        return self.run(input_ids, keys_so_far)


class FilledOnDemand(Plain):
    def forward(
        self, input_ids: Tensor, past_key_values: DynamicCache | None = None, use_cache: bool | None = None
    ) -> Tensor:
        return self.run(input_ids, past_key_values if use_cache else None)


class TwoCaches(Plain):
    """A model that fills only the second of two caches."""

    def forward(
        self, input_ids: Tensor, first_cache: DynamicCache | None = None, second_cache: DynamicCache | None = None
    ) -> Tensor:
        return self.run(input_ids, second_cache)


class HandsOn(Plain):
    """A model that passes all keywords to the one inside."""

    def forward(self, **given: Any) -> Tensor:
        result: Tensor = self.inner(**given).last_hidden_state
        return result.square().mean()


class Unknown(Plain):
    def forward(self, input_ids: Tensor, keys_so_far: Any = None, use_cache: bool | None = None) -> Tensor:
        return self.run(input_ids, keys_so_far)


class OtherState(Plain):
    def forward(self, input_ids: Tensor, mems: Any = None) -> Tensor:
        return self.run(input_ids)


class NeverFilled(Plain):
    def forward(self, input_ids: Tensor, past_key_values: DynamicCache | None = None) -> Tensor:
        return self.run(input_ids)


def examined(model: Plain) -> Report:
    return verify(model.train(), model.inputs, loss=lambda value: value, levels=["state"])


def states(report: Report) -> set[str]:
    return {mode.outcomes["state"] for mode in report.modes}


def reasons(report: Report) -> set[SkipKind]:
    return {skip.kind for mode in report.modes for skip in mode.skips if "state" in skip.levels}


@pytest.mark.parametrize("kind", [Annotated, FilledOnDemand, TwoCaches, HandsOn])
def test_a_cache_is_given_whatever_its_argument_is_called(kind: type[Plain]) -> None:
    report = examined(kind())
    assert states(report) == {"failed"}
    assert report.modes[0].faults[0].kind == "cache_step_raised"


@pytest.mark.parametrize(
    ("kind", "reason", "words"),
    [
        (Unknown, SkipKind.NO_CACHE_ARGUMENT, "it takes use_cache, and no argument that a Cache is for"),
        (OtherState, SkipKind.NO_CACHE_ARGUMENT, "it takes mems, and no argument that a Cache is for"),
        (NeverFilled, SkipKind.CACHE_NOT_TAKEN, "in past_key_values without checkpointing either (it stays empty)"),
    ],
)
def test_what_becomes_of_a_cache_that_was_not_filled_is_skipped(
    kind: type[Plain], reason: SkipKind, words: str
) -> None:
    report = examined(kind())
    assert states(report) == {"skipped"}
    assert reasons(report) == {reason}
    assert words in str(report.modes[0].skips[0])


@pytest.mark.parametrize("given", [DynamicCache(), None])
def test_a_given_cache_that_the_model_does_not_fill_shows_nothing(given: Any) -> None:
    model = FilledOnDemand()
    inputs = (model.inputs["input_ids"], given)
    report = verify(model.train(), inputs, loss=lambda value: value, levels=["state"])
    assert states(report) == {"failed"}
    assert report.faults[0][1].subjects == ("input *1",)


def test_no_cache_is_given_to_a_model_that_trains_without_one() -> None:
    model = Annotated()
    config: Any = transformers.PretrainedConfig()
    config.use_cache = False
    model.config = config
    report = examined(model)
    assert "failed" not in states(report)
    assert reasons(report) == set()
