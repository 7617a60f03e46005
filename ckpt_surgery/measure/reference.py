"""The run without checkpointing, and whether another run differs from it by more than noise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.compare import Verdict, compare
from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.loop import LoopLevel
from ckpt_surgery.measure.noise import NoisyReference, gradient_fault, not_finite
from ckpt_surgery.measure.precision import PrecisionLevel
from ckpt_surgery.measure.record import RunRecord, StepPart
from ckpt_surgery.measure.results import Fault, FaultCause, Level, LevelVerdict, Mode, Skip
from ckpt_surgery.measure.setup import Setup


@dataclass(frozen=True, slots=True)
class CacheReference:
    """The run without checkpointing that is given a cache, and what makes such an empty cache."""

    make: Callable[[], Any]
    record: RunRecord


class Reference:
    """The run without checkpointing that every mode is held against. Made by `run_reference`.

    More such runs are made only where something looks wrong, or a level asks for them, and once each.
    """

    def __init__(self, setup: Setup, record: RunRecord) -> None:
        self._setup = setup
        self.record = record
        self._noisy = NoisyReference(self._run, (record,), setup.tolerance)

    @cached_property
    def _loops(self) -> LoopLevel:
        return LoopLevel(self._setup, self.record, self._noisy.rounding)

    @cached_property
    def _precisions(self) -> PrecisionLevel:
        return PrecisionLevel(self._setup)

    def deep_verdict(self, level: Level, mode: Mode, step: RunRecord) -> LevelVerdict:
        """The verdict of the level loop or precision, whose runs without checkpointing are kept here.

        `step` is one step in this mode.
        """
        return self._loops.verdict(mode, step) if level == "loop" else self._precisions.verdict(mode)

    def verdict(self, run: RunRecord) -> Verdict:
        """The verdict by equal bits where all are, and by the measured noise otherwise."""
        return self._noisy.verdict(0, run)

    @cached_property
    def irreproducible(self) -> Fault | None:
        """The fault of a model whose run without checkpointing differs when it is repeated; None where it does not."""
        first = self._noisy.irreproducible
        if first is None:
            return None
        return Fault(FaultKind.IRREPRODUCIBLE, explanation=FaultCause(CauseKind.OWN_STATE), underlying=first)

    @cached_property
    def with_cache(self) -> CacheReference | Skip:
        """The run with an empty cache in `past_key_values`, or why there is none."""
        error: object = None
        for make in cache_makers(self._setup.model):
            record = self._setup.run(None, past_key_values=make())
            if record.error is None and "past_key_values" in record.cache:
                return CacheReference(make, record)
            error = error or record.error
        if error is None:
            return Skip(("state",), SkipKind.NO_CACHE, {"error": "transformers makes none for its configuration"})
        return Skip(("state",), SkipKind.CACHE_NOT_TAKEN, {"error": str(error)})

    def equals_without_cache(self, run: RunRecord) -> bool:
        """Whether the model takes `use_cache`, and computes the same as in `run` once its cache is off."""
        if "use_cache" not in inspect.signature(self._setup.model.forward).parameters:
            return False
        without = self._setup.run(None, use_cache=False)
        verdict = compare(without, run, floors=self._noisy.floors(0), tolerance=self._setup.tolerance)
        return gradient_fault(verdict) is None

    def _run(self, rounding_seed: int) -> tuple[RunRecord, ...]:
        return (self._setup.run(None, rounding_seed=rounding_seed),)


def cache_makers(model: nn.Module) -> list[Callable[[], Any]]:
    """Makers of empty caches that a model may take, the likeliest first; none where transformers makes none for it."""
    config = getattr(model, "config", None)

    def plain() -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=config)

    def of_decoder() -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    makers = [of_decoder, plain] if getattr(config, "is_encoder_decoder", False) else [plain]
    usable = []
    for make in makers:
        with suppress(Exception):  # no transformers, or a configuration that says nothing of layers
            make()
            usable.append(make)
    return usable


def run_reference(setup: Setup) -> Reference:
    """Run once without checkpointing. Raises VerifyError where nothing can be held against that run."""
    record = setup.run(None)
    name = setup.name
    if record.error:
        what = "the loss function" if record.error.part is StepPart.LOSS else "model and inputs"
        raise VerifyError(f"the run of {name} without checkpointing failed: {record.error}; check {what}")
    if problem := not_finite((record,)):
        raise VerifyError(
            f"in the run of {name} without checkpointing {problem}: nothing can be held against it; try other inputs "
            "or float32"
        )
    if not any(gradient is not None for gradient in record.gradients.values()):
        raise VerifyError(f"the loss reaches no parameter of {name}: it needs some that require gradient")
    return Reference(setup, record)
