"""Run a model without checkpointing, and judge each mode of checkpointing level by level against that."""

from __future__ import annotations

import inspect
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import nn

from ckpt_surgery.errors import CkptSurgeryError, VerifyError
from ckpt_surgery.measure.causes import Case, explain
from ckpt_surgery.measure.compare import Verdict, cache_faults, compare
from ckpt_surgery.measure.cost import WORTH_SAVING
from ckpt_surgery.measure.given_cache import GivenCache, given_cache
from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.loop import LoopLevel
from ckpt_surgery.measure.noise import NoisyReference, why_no_reference
from ckpt_surgery.measure.precision import PrecisionLevel
from ckpt_surgery.measure.ranks import judge_ranks
from ckpt_surgery.measure.record import RunRecord, StepPart, input_name
from ckpt_surgery.measure.results import (
    DEEP_LEVELS,
    LEVELS,
    BlockCount,
    Detail,
    Fault,
    FaultCause,
    Level,
    LevelVerdict,
    Mode,
    ModeReport,
    Outcome,
    Skip,
)
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.measure.surgical_blocks import has_surgery
from ckpt_surgery.measure.switch import NoSuchModeError
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH, CLAIM, FLAG
from ckpt_surgery.text import error_line, listed

_KEEPS_ON_PURPOSE = (SkipKind.GRADIENT_IN_FORWARD, SkipKind.SELECTIVE_POLICY, SkipKind.OWN_PARTS, SkipKind.OWN_PACKING)
"""The reasons not to judge what a model keeps: it keeps that on purpose."""


class Reference:
    """The run without checkpointing, which every mode is compared with. Made by `of`.

    More such runs are made only if something looks wrong or a level asks for them, and once each. `before_surgery`
    says that the record is of the model before its surgery.
    """

    def __init__(self, setup: Setup, record: RunRecord, *, before_surgery: bool = False) -> None:
        self._setup = setup
        self._before_surgery = before_surgery
        self.record = record
        self._noisy = NoisyReference(self._run, (record,), setup.tolerance)

    @cached_property
    def _loops(self) -> LoopLevel:
        return LoopLevel(self._setup, self.record, self._noisy.rounding)

    @cached_property
    def _precisions(self) -> PrecisionLevel:
        return PrecisionLevel(self._setup)

    def deep_verdict(self, level: Level, mode: Mode, step: RunRecord) -> LevelVerdict:
        """Judge the level loop or precision, whose runs without checkpointing are kept here.

        `step` is one step in this mode.
        """
        return self._loops.verdict(mode, step) if level == "loop" else self._precisions.verdict(mode)

    def verdict(self, run: RunRecord) -> Verdict:
        """Compare a run with the reference: by equal bits, or else by the measured noise."""
        return self._noisy.verdict(0, run)

    @property
    def is_noisy(self) -> bool:
        """Whether the run without checkpointing differs in any bit when it is repeated."""
        return self._noisy.is_noisy

    @cached_property
    def irreproducible(self) -> Fault | None:
        """The fault of a model whose runs without checkpointing differ; None where they agree."""
        difference = self._noisy.irreproducible
        if difference is None:
            return None
        return Fault(FaultKind.IRREPRODUCIBLE, explanation=FaultCause(CauseKind.OWN_STATE), underlying=difference)

    @cached_property
    def changed_by_surgery(self) -> bool:
        """Whether runs without checkpointing agree with one another after the surgery, but not with the one before."""
        again = self._before_surgery and self.irreproducible and Reference(self._setup, self._setup.run(None))
        return isinstance(again, Reference) and again.irreproducible is None

    @cached_property
    def given_cache(self) -> GivenCache | Skip | None:
        """The run that fills an empty cache, a skip that says why none does, or None if none can be passed."""
        return given_cache(self._setup, self.record)

    def equals_without_cache(self, run: RunRecord) -> bool:
        """Tell whether the model can be run without a cache, and then computes the same as `run`."""
        if CACHE_SWITCH not in inspect.signature(self._setup.model.forward).parameters:
            return False
        cache_off: dict[str, Any] = {CACHE_SWITCH: False}
        without = self._setup.run(None, **cache_off)
        verdict = compare(without, run, floors=self._noisy.floors(0), tolerance=self._setup.tolerance)
        return verdict.gradient_fault is None

    def _run(self, rounding_seed: int) -> tuple[RunRecord, ...]:
        return (self._setup.run(None, rounding_seed=rounding_seed),)

    @classmethod
    def of(cls, setup: Setup) -> Reference:
        """Run once without checkpointing. Raises VerifyError if that run cannot be a reference."""
        name = setup.name
        try:
            record = setup.run(None)
        except CkptSurgeryError:
            raise
        except Exception as error:  # whatever switching checkpointing off, or putting the model back, raises
            raise VerifyError(f"{name} cannot be run with its checkpointing off: {error_line(error)}") from error
        if record.error:
            what = "the loss function" if record.error.part is StepPart.LOSS else "model and inputs"
            raise VerifyError(f"the run of {name} without checkpointing failed: {record.error}; check {what}")
        if problem := why_no_reference((record,)):
            raise VerifyError(
                f"in the run of {name} without checkpointing {problem}: nothing can be compared with it; try other "
                "inputs or float32"
            )
        if not any(gradient is not None for gradient in record.gradients.values()):
            raise VerifyError(f"the loss reaches no parameter of {name}: it needs some that require gradient")
        return cls(setup, record)


class ModeJudge:
    """Run with checkpointing in one mode, and report the levels at which it differs from the reference, and why."""

    def __init__(self, setup: Setup, reference: Reference, mode: Mode) -> None:
        self._setup = setup
        self._reference = reference
        self._mode = mode
        self._case = Case(setup.model, setup.blocks, reference.record, mode)

    def report(self) -> ModeReport:
        started = time.perf_counter()
        if own := self._reference.record.own_checkpoint:
            return self._report_own_checkpoint(own)
        try:
            run = self._setup.run(self._mode)
        except NoSuchModeError as error:
            return self._not_run(skips=(Skip(("run",), SkipKind.NO_SUCH_MODE, {"error": str(error)}),))
        except VerifyError:
            raise
        except Exception as error:  # whatever the method to switch it on raises is the finding
            return self._broken_off(Fault(FaultKind.NOT_SWITCHED_ON, details={"error": error_line(error)}))
        self._case = replace(self._case, run=run)
        if run.refused is not None:
            return self._not_run(refused=run.refused)
        without_effect = not run.packs and self._is_nothing_checkpointed(run)
        claims = self._setup.own_switch or bool(getattr(self._setup.model, CLAIM, False))
        blocks_missing = without_effect and not self._setup.blocks and claims
        if without_effect and not blocks_missing:
            kind = SkipKind.NO_BLOCK_REACHED if self._setup.blocks else SkipKind.NOTHING_CHECKPOINTED
            return self._not_run(skips=(Skip(("run",), kind),))
        verdict = self._reference.verdict(run)
        if verdict.gradient_fault and not run.error and self._reference.is_noisy:
            run = self._setup.run(self._mode)
            self._case = replace(self._case, run=run)
            verdict = self._reference.verdict(run)
        if not verdict.ok and (irreproducible := self._reference.irreproducible):
            if self._reference.changed_by_surgery:
                return self._broken_off(replace(irreproducible, explanation=None))
            skip = Skip(("run",), SkipKind.IRREPRODUCIBLE, {"error": irreproducible.seen})
            return self._not_run(skips=(skip,), for_ranks=[irreproducible])
        missing = FaultKind.NOTHING_CHECKPOINTED if self._setup.own_switch else FaultKind.NO_BLOCKS
        without_blocks = [Fault(missing)] if blocks_missing else []
        explained = explain([*verdict.faults, *self._switched_off(), *without_blocks], self._case)
        levels: dict[Level, LevelVerdict] = {"state": self._cache_verdict(run)}
        faults = [*self._blamed_on_cache(explained, run), *levels["state"].faults]
        deep = self._deep_verdicts(run, faults)
        levels |= {level: replace(found, faults=explain(found.faults, self._case)) for level, found in deep.items()}
        faults += [*levels["loop"].faults, *levels["precision"].faults]
        unjudged = self._unjudged(run, verdict)
        judged = {"run", *self._setup.levels} - {"cost" for skip in unjudged if skip.kind in _KEEPS_ON_PURPOSE}
        faults = [fault for fault in faults if fault.level in judged]
        levels["ranks"] = self._ranks(faults)
        everything = (*faults, *levels["ranks"].faults)
        if not everything and self._mode not in run.modes and not has_surgery(self._setup.model):
            return ModeReport.skipped(self._mode, SkipKind.OTHER_MODE)
        skips = [*unjudged, *(skip for v in levels.values() for skip in v.skips)]
        skipped = {level for skip in skips for level in skip.levels if level not in levels}
        skipped |= {level for level, found in levels.items() if not found.measured}
        return ModeReport(
            mode=self._mode,
            faults=everything,
            outcomes=self._outcomes(everything, ended=run.error is None, skipped=skipped),
            skips=tuple(skips),
            blocks=self._counts(run),
            errors=verdict.errors or {},
            cost=verdict.cost,
            kept_results=run.memory.kept_results,
            timeline=run.memory.timeline,
            seconds=time.perf_counter() - started,
        )

    def _unjudged(self, run: RunRecord, verdict: Verdict) -> list[Skip]:
        """List why levels cannot be judged although the step ended."""
        if run.error is not None:
            return []
        skips = []
        if not self._setup.blocks:
            skips = [Skip(levels, SkipKind.NO_BLOCKS)] if (levels := self._asked("recompute", "cost")) else []
        elif verdict.lost and "cost" in self._setup.levels:
            skips = [Skip(("cost",), SkipKind.GRADIENTS_LOST)]
        entries = run.entries.values()
        figures = {"kept": run.memory.kept, "reference": self._reference.record.memory.kept}
        if "cost" in self._setup.levels and any(fault.level == "cost" for fault in verdict.faults):
            if any(each.within for each in entries):
                skips.append(Skip(("cost",), SkipKind.GRADIENT_IN_FORWARD, figures))
            elif any(each.selective for each in entries):
                skips.append(Skip(("cost",), SkipKind.SELECTIVE_POLICY, figures))
            elif verdict.in_parts:
                skips.append(Skip(("cost",), SkipKind.OWN_PARTS, figures))
        if run.only_packs and (levels := self._asked("recompute", "cost", *DEEP_LEVELS)):
            skips.append(Skip(levels, SkipKind.OWN_PACKING, figures))
        return skips

    def _asked(self, *levels: Level) -> tuple[Level, ...]:
        return tuple(level for level in levels if level in self._setup.levels)

    def _deep_verdicts(self, run: RunRecord, faults: Sequence[Fault]) -> dict[Level, LevelVerdict]:
        """Judge the levels loop and precision, unless a single step is wrong already: they would show nothing new."""
        wrong = any(fault.level != "cost" and fault.level in ("run", *self._setup.levels) for fault in faults)
        verdicts: dict[Level, LevelVerdict] = {}
        for level in DEEP_LEVELS:
            if level not in self._setup.levels or run.error is not None or run.only_packs:
                verdicts[level] = LevelVerdict(measured=False)
            elif wrong:
                verdicts[level] = LevelVerdict(skips=(Skip((level,), SkipKind.STEP_WRONG),), measured=False)
            else:
                verdicts[level] = self._reference.deep_verdict(level, self._mode, run)
        return verdicts

    def _report_own_checkpoint(self, own: str) -> ModeReport:
        """Report a mode whose reference checkpoints by itself: only the gradients it loses can be judged."""
        gradients = self._reference.record.gradients
        lost = tuple(name for name, gradient in gradients.items() if gradient is None)
        if not lost or "set" not in self._setup.levels:
            return self._not_run(skips=(Skip(("run",), SkipKind.OWN_CHECKPOINT, {"own": own}),))
        details: dict[str, Detail] = {"own": own, "count": len(lost), "total": len(gradients)}
        return self._broken_off(Fault(FaultKind.LOST_IN_REFERENCE, lost, details), run="skipped")

    def _not_run(
        self, *, refused: str = "", skips: tuple[Skip, ...] = (), for_ranks: Sequence[Fault] = ()
    ) -> ModeReport:
        """Report a mode that is refused, does not run, or shows nothing. The other ranks hear of `for_ranks`."""
        faults = self._ranks(for_ranks).faults
        outcomes: dict[Level, Outcome] = {**self._outcomes(faults, ended=False), "run": "skipped"}
        return ModeReport(self._mode, faults, outcomes, skips=skips, refused=refused)

    def _broken_off(self, fault: Fault, run: Outcome = "failed") -> ModeReport:
        """Report a mode of which only this fault is known. The other ranks wait to hear of it."""
        explained = explain([fault], self._case)
        faults = (*explained, *self._ranks(explained).faults)
        return ModeReport(self._mode, faults, {**self._outcomes(faults, ended=False), "run": run})

    def _ranks(self, faults: Sequence[Fault]) -> LevelVerdict:
        """Judge all ranks together; each rank must call this, whatever its own faults."""
        if "ranks" not in self._setup.levels:
            return LevelVerdict(measured=False)

        def step(model: nn.Module) -> RunRecord:
            return self._setup.run(self._mode, through=model)

        record, tolerance = self._reference.record, self._setup.tolerance
        return judge_ranks(self._setup.given, self._mode, record, faults, step, tolerance=tolerance)

    def _blamed_on_cache(self, faults: Sequence[Fault], run: RunRecord) -> Sequence[Fault]:
        """Blame the cache for unexplained wrong gradients if a run with the cache off gives the same ones."""
        wrong = [fault for fault in faults if fault.level in ("set", "values") and fault.explanation is None]
        if not wrong or not self._reference.equals_without_cache(run):
            return faults
        cause = FaultCause(CauseKind.CACHE_SWITCHED_OFF)
        return [replace(fault, explanation=cause) if fault in wrong else fault for fault in faults]

    def _switched_off(self) -> list[Fault]:
        """Report stacks that are off in the model as it was given while others are on, if they could save much."""
        memory = self._reference.record.memory
        layers = {n: b for n, b in self._setup.blocks.items() if hasattr(b.module, FLAG) and not b.inside}
        on = {layer.stack for layer in layers.values() if getattr(layer.module, FLAG)}
        off = [name for name, layer in layers.items() if layer.stack not in on and memory.held.get(name)]
        much = sum(memory.held[name] for name in off) > WORTH_SAVING * memory.kept
        return (
            [Fault(FaultKind.SWITCHED_OFF, tuple(off))] if on and much and not has_surgery(self._setup.model) else []
        )

    def _is_nothing_checkpointed(self, run: RunRecord) -> bool:
        """Tell whether the backward of a finished step reaches no block, and it keeps no less than the reference."""
        reference = self._reference.record
        reached = any(facts.backward_calls for facts in reference.calls.values())
        reached = reached or any(entries.backward or entries.direct for entries in run.entries.values())
        return not (run.error or reached or run.memory.kept < reference.memory.kept)

    def _cache_verdict(self, run: RunRecord) -> LevelVerdict:
        """Judge what becomes of a cache that is passed in, if the model takes one and the inputs hold none."""
        if "state" not in self._setup.levels or run.error:
            return LevelVerdict()
        given = self._reference.given_cache
        if given is None:
            return LevelVerdict()
        if isinstance(given, Skip):
            return LevelVerdict(skips=(given,), measured=False)
        with_cache = self._setup.run(self._mode, **given.inputs())
        if with_cache.refused is not None:
            details = {"argument": listed(given.arguments), "error": with_cache.refused}
            return LevelVerdict(skips=(Skip(("state",), SkipKind.CACHE_REFUSED, details),), measured=False)
        faults = cache_faults(with_cache, given.record)
        if with_cache.error and not any(fault.kind is FaultKind.CACHE_WRITTEN for fault in faults):
            subjects, details = tuple(map(input_name, given.arguments)), {"error": str(with_cache.error)}
            faults = [Fault(FaultKind.CACHE_STEP_RAISED, subjects, details)]
        return LevelVerdict(explain(faults, replace(self._case, reference=given.record, run=with_cache)))

    def _outcomes(
        self, faults: Sequence[Fault], *, ended: bool, skipped: Collection[Level] = ()
    ) -> dict[Level, Outcome]:
        failed = {fault.level for fault in faults}
        outcomes: dict[Level, Outcome] = {}
        for level in LEVELS:
            measured = level == "run" or (ended and level in self._setup.levels and level not in skipped)
            outcomes[level] = "failed" if level in failed else "ok" if measured else "skipped"
        return outcomes

    def _counts(self, run: RunRecord) -> tuple[BlockCount, ...]:
        before = self._reference.record.entries
        return tuple(
            BlockCount(name, block.kind, before[name].forward, entries.forward, entries.backward)
            for name, block in self._setup.blocks.items()
            if (entries := run.entries.get(name)) is not None
        )
