"""Judge whether checkpointing computes the same in half precision and under autocast, by one step of a cast model."""

from __future__ import annotations

from functools import partial

import torch

from ckpt_surgery.measure.block_entries import AUTOCAST_STATES, EntryCounter
from ckpt_surgery.measure.casting import AUTOCAST, DTYPES, WIDE
from ckpt_surgery.measure.kinds import FaultKind, Precision, SkipKind
from ckpt_surgery.measure.results import Fault, LevelVerdict, Mode, Skip
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.measure.training import Training, TrainingJudge, one_step, run_training, sorted_out
from ckpt_surgery.text import listed


class PrecisionLevel:
    """The steps without checkpointing in each precision, run once each and compared with every mode."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        dtypes = {parameter.dtype for parameter in setup.model.parameters() if parameter.is_floating_point()}
        others = [precision for precision in Precision if DTYPES.get(precision) not in dtypes]
        self._narrow = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes - set(WIDE))
        self._recast: tuple[str, ...] = ()
        """The blocks that the last step recomputed under another autocast; without it only rounding differs."""
        self._judges = [
            TrainingJudge(
                "precision",
                precision,
                partial(self._train, precision),
                eps=torch.finfo(DTYPES.get(precision, AUTOCAST)).eps,
            )
            for precision in others
        ]

    def verdict(self, mode: Mode) -> LevelVerdict:
        """Judge this mode in each precision in which the model trains without checkpointing."""
        if self._narrow:
            skip = Skip(("precision",), SkipKind.NOT_WIDE, {"dtypes": listed(self._narrow)})
            return LevelVerdict(skips=(skip,), measured=False)
        return sorted_out([self._outside_autocast(judge.judge(mode)) for judge in self._judges])

    def _outside_autocast(self, result: Training | Fault | Skip) -> Training | Fault | Skip:
        """Return a fault where a step computes the same, but recomputes blocks without their autocast."""
        recast = isinstance(result, Training) and self._recast
        return Fault(FaultKind.AUTOCAST_NOT_RESTORED, recast) if recast else result

    def _train(self, precision: Precision, mode: Mode | None, rounding_seed: int) -> Training:
        step = one_step if mode is None else self._watched_step
        return run_training(self._setup, mode, step, precision=precision, rounding_seed=rounding_seed)

    def _watched_step(self, training: Training) -> None:
        blocks = {name: block.module for name, block in self._setup.blocks.items()}
        with EntryCounter(self._setup.model, blocks, states=True) as counter:
            loss = training.forward()
            counter.start_backward()
            training.backward(loss)
        recast = [f"{module}." for module, what in counter.other_states().items() if what in AUTOCAST_STATES]
        self._recast = tuple(name for name in blocks if any(module.startswith(f"{name}.") for module in recast))
