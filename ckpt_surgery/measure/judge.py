"""One mode of checkpointing, judged level by level next to the run without."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from ckpt_surgery.measure.causes import Case, explain
from ckpt_surgery.measure.compare import cache_faults
from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.ranks import RanksVerdict, judge_ranks
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.reference import Reference
from ckpt_surgery.measure.results import (
    LEVELS,
    BlockCount,
    Explanation,
    Fault,
    Level,
    Mode,
    ModeReport,
    Outcome,
)
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.runtime.call_arguments import is_cache
from ckpt_surgery.text import error_line

_NO_BLOCKS = "No stack of blocks was found: recomputes were not counted."


def judge(setup: Setup, reference: Reference, mode: Mode) -> ModeReport:
    """Run with checkpointing in this mode, and say at which levels it differs from the reference, and why."""
    return _Judge(setup, reference, mode).report()


class _Judge:
    """One mode on its way to a report."""

    def __init__(self, setup: Setup, reference: Reference, mode: Mode) -> None:
        self._setup = setup
        self._reference = reference
        self._mode = mode
        self._case = Case(setup.model, setup.blocks, reference.record, mode)

    def report(self) -> ModeReport:
        started = time.perf_counter()
        try:
            run = self._setup.run(self._mode)
        except Exception as error:  # whatever the method to switch it on raises is the finding
            return self._broken_off(Fault(FaultKind.NOT_SWITCHED_ON, details={"error": error_line(error)}))
        if run.refused is not None and self._mode == "reentrant":
            return self._refusal(run.refused)
        verdict = self._reference.verdict(run)
        if not verdict.ok and (fault := self._reference.irreproducible):
            return self._broken_off(fault)
        faults, notes = self._faults(run, verdict.faults)
        ranks = self._ranks(faults)
        everything = (*faults, *ranks.faults)
        return ModeReport(
            mode=self._mode,
            faults=everything,
            outcomes=self._outcomes(everything, ended=run.error is None, whole=not verdict.lost, ranks=ranks.measured),
            notes=(*notes, *([] if self._setup.blocks else [_NO_BLOCKS]), *([ranks.note] if ranks.note else [])),
            blocks=self._counts(run),
            errors=verdict.errors or {},
            cost=verdict.cost,
            timeline=run.timeline,
            seconds=time.perf_counter() - started,
        )

    def _faults(self, run: RunRecord, different: Sequence[Fault]) -> tuple[list[Fault], list[str]]:
        """The faults of the levels to judge, explained, and what could not be tried."""
        of_cache, notes = self._cache_faults(run)
        explained = explain([*different, *self._missing_blocks(run)], self._case)
        faults = [*self._blamed_on_cache(explained, run), *of_cache]
        return [fault for fault in faults if fault.level in ("run", *self._setup.levels)], notes

    def _refusal(self, sentence: str) -> ModeReport:
        """A mode in which a surgery refuses a call, rather than get it wrong; the other ranks hear of no fault."""
        faults = self._ranks(()).faults
        outcomes: dict[Level, Outcome] = {**self._outcomes(faults, ended=False), "run": "skipped"}
        return ModeReport(self._mode, faults, outcomes, refused=sentence)

    def _broken_off(self, fault: Fault) -> ModeReport:
        """A mode of which nothing else is known; the other ranks wait to hear of it."""
        faults = (fault, *self._ranks([fault]).faults)
        return ModeReport(self._mode, faults, self._outcomes(faults, ended=False))

    def _ranks(self, faults: Sequence[Fault]) -> RanksVerdict:
        """The verdict on all ranks together; each has to ask for it, whatever its own faults are."""
        if "ranks" not in self._setup.levels:
            return RanksVerdict()

        def step(model: nn.Module) -> RunRecord:
            return self._setup.run(self._mode, through=model)

        record, tolerance = self._reference.record, self._setup.tolerance
        return judge_ranks(self._setup.given, self._mode, record, faults, step, tolerance=tolerance)

    def _blamed_on_cache(self, faults: Sequence[Fault], run: RunRecord) -> Sequence[Fault]:
        """The same faults; wrong gradients that nothing else explains may be those of a run with its cache off."""
        wrong = [fault for fault in faults if fault.level in ("set", "values") and fault.explanation is None]
        if not wrong or not self._reference.equals_without_cache(run):
            return faults
        why = Explanation(CauseKind.CACHE_SWITCHED_OFF)
        return [replace(fault, explanation=why) if fault in wrong else fault for fault in faults]

    def _missing_blocks(self, run: RunRecord) -> list[Fault]:
        """The fault of a model of transformers that says it supports checkpointing and has nothing to checkpoint."""
        claims = bool(getattr(self._setup.model, "supports_gradient_checkpointing", False))
        saves = run.kept_bytes < self._reference.record.kept_bytes  # in a block that is no stack
        if self._setup.blocks or run.error or not claims or saves:
            return []
        return [Fault(FaultKind.NO_BLOCKS)]

    def _cache_faults(self, run: RunRecord) -> tuple[Sequence[Fault], list[str]]:
        """What becomes of a cache that is given explicitly, where the model takes one and the inputs have none."""
        parameters = inspect.signature(self._setup.model.forward).parameters
        wanted = "past_key_values" in parameters and not any(map(is_cache, self._setup.inputs.values()))
        if "state" not in self._setup.levels or not wanted or run.error:
            return (), []
        cache = _empty_cache(self._setup.model)
        given = None if cache is None else self._setup.run(self._mode, past_key_values=cache)
        if given is None or given.error or "past_key_values" not in given.cache:
            why = f": {given.error}" if given and given.error else ""
            return (), [f"What becomes of a cache in past_key_values was not tried{why}."]
        faults = cache_faults(given)
        if not faults:
            return (), []
        shown = self._setup.run(None, past_key_values=_empty_cache(self._setup.model))
        return explain(faults, replace(self._case, reference=shown)), []

    def _outcomes(
        self, faults: Sequence[Fault], *, ended: bool, whole: bool = True, ranks: bool = False
    ) -> dict[Level, Outcome]:
        """What became of each level; a backward that is not `whole` has no cost to compare."""
        failed = {fault.level for fault in faults}
        blocks = bool(self._setup.blocks)
        decided: dict[Level, bool] = {"recompute": blocks, "cost": blocks and whole, "ranks": ranks}
        outcomes: dict[Level, Outcome] = {}
        for level in LEVELS:
            measured = level == "run" or (ended and level in self._setup.levels and decided.get(level, True))
            outcomes[level] = "failed" if level in failed else "ok" if measured else "skipped"
        return outcomes

    def _counts(self, run: RunRecord) -> tuple[BlockCount, ...]:
        before = self._reference.record.entries
        return tuple(
            BlockCount(name, block.kind, before[name].forward, entries.forward, entries.backward)
            for name, block in self._setup.blocks.items()
            if (entries := run.entries.get(name)) is not None
        )


def _empty_cache(model: nn.Module) -> Any:
    """An empty cache for the model's own configuration; None where none can be made."""
    try:
        import transformers

        return transformers.DynamicCache(config=getattr(model, "config", None))
    except Exception:
        return None
