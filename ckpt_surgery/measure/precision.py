"""Judge whether checkpointing computes the same in half precision and under autocast, by one step of a cast model."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import nn

from ckpt_surgery.measure.casting import AUTOCAST_DTYPE, DTYPES, WIDE_DTYPES, autocast_of
from ckpt_surgery.measure.kinds import FaultKind, Precision, SkipKind
from ckpt_surgery.measure.results import Fault, LevelVerdict, Mode, Skip
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.measure.training import Training, TrainingJudge, level_verdict
from ckpt_surgery.text import listed


class PrecisionLevel:
    """The steps without checkpointing in each precision, run once each and compared with every mode."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        dtypes = {parameter.dtype for parameter in setup.model.parameters() if parameter.is_floating_point()}
        others = [precision for precision in Precision if DTYPES.get(precision) not in dtypes]
        self._narrow = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes - set(WIDE_DTYPES))
        self._judges = [
            TrainingJudge(
                "precision",
                precision,
                partial(self._train, precision),
                eps=torch.finfo(DTYPES.get(precision, AUTOCAST_DTYPE)).eps,
            )
            for precision in others
        ]

    def verdict(self, mode: Mode) -> LevelVerdict:
        """Judge this mode in each precision in which the model trains without checkpointing."""
        if self._narrow:
            skip = Skip(("precision",), SkipKind.NOT_WIDE, {"dtypes": listed(self._narrow)})
            return LevelVerdict(skips=(skip,), measured=False)
        return level_verdict([self._outside_autocast(judge.judge(mode)) for judge in self._judges])

    def _outside_autocast(self, result: Training | Fault | Skip) -> Training | Fault | Skip:
        """Return a fault if a step computes the same, but recomputes blocks without their autocast."""
        if not isinstance(result, Training) or not self._watch.differing:
            return result
        return Fault(FaultKind.AUTOCAST_NOT_RESTORED, tuple(self._watch.differing))

    def _train(self, precision: Precision, mode: Mode | None, rounding_seed: int) -> Training:
        step: Callable[[Training], None] = Training.one_step
        if mode is not None:
            self._watch = _AutocastWatch(self._setup)
            step = self._watch.step
        return Training.run(self._setup, mode, step, precision=precision, rounding_seed=rounding_seed)


class _AutocastWatch:
    """A watch over the autocast of recomputes: another than in the forward may change no more than rounding does.

    It looks at all submodules of a block, those shared with other blocks too. One that only the recompute runs says
    nothing.
    """

    def __init__(self, setup: Setup) -> None:
        self._blocks = setup.blocks
        self._seen: dict[nn.Module, set[Hashable]] = {}
        self._in_backward = False
        self.differing: dict[str, None] = {}
        """The names of the blocks that are recomputed under another autocast."""

    def step(self, training: Training) -> None:
        """Run one step and watch it; restoring the model removes the hooks."""
        for name, block in self._blocks.items():
            for part in block.module.modules():
                part.register_forward_pre_hook(partial(self._look, name), prepend=True)
        loss = training.forward()
        self._in_backward = True
        training.backward(loss)

    def _look(self, name: str, part: nn.Module, _: object) -> None:
        state = autocast_of(part)
        if not self._in_backward:
            self._seen.setdefault(part, set()).add(state)
        elif state not in self._seen.get(part, {state}):
            self.differing[name] = None
