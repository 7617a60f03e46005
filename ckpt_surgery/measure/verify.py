"""`verify`: prove that checkpointing works on one model, mode by mode and level by level.

`arguments` checks the arguments, and `judge` runs the model without checkpointing and in each mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.arguments import Inputs, Levels, checked_inputs, checked_model, checked_names
from ckpt_surgery.measure.judge import ModeJudge, Reference
from ckpt_surgery.measure.kinds import SkipKind
from ckpt_surgery.measure.ranks import first_problem, unwrapped
from ckpt_surgery.measure.report import ModelFacts, Report
from ckpt_surgery.measure.results import LEVELS, MODES, SURGERY_MODE, Mode, ModeReport
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.measure.surgical_blocks import blocks_of, has_surgery
from ckpt_surgery.measure.switch import Switch, switch_of
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.model_patches.release_names import CLAIM
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks


def verify(
    model: nn.Module,
    inputs: Inputs,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    modes: Mode | Sequence[Mode] = MODES,
    levels: Levels = "all",
    seed: int = 0,
    tolerance: float | None = None,
    switch: Switch | None = None,
) -> Report:
    """Prove that gradient checkpointing works on `model`, or say what it does wrong.

    One training step without checkpointing is the reference; one step per mode is compared with it, on the same model,
    seed and inputs. Afterwards the model is as it was: values, buffers, gradients, generators, training mode, hooks
    and flags. During the steps, parameters that are zero or nearly so get small random values, so that a closed gate
    hides nothing.

    A model with a surgery of `wrap_blocks` is measured once, with the options of its surgery: the other mode is
    skipped. A model that claims no support for checkpointing but has checkpointing layers is examined as if it claimed
    support; its report says so, and is never `ok`. Without such layers there is no verdict.

    This costs one step per mode, one for the reference, and one copy of parameters and buffers; up to five more steps
    if something looks wrong or a cache can be passed; and a dozen each for the levels loop and precision. There is no
    time limit: if a backward never ends (WavLM, reentrant), nor does this. `ckpt_surgery verify` has limits.

    Args:
        model: a module in training mode, on any device but meta. In an initialised process group, the level "ranks"
            compares the ranks of a `DistributedDataParallel`; every rank has to call this.
        inputs: the keyword arguments of its forward, a tuple of positional ones, or a single tensor.
        loss: a function from the output to a scalar tensor. By default the output's own loss, or a weighted sum of
            every float tensor in it.
        modes: "reentrant", "non_reentrant", or both.
        levels: "all", or some of `results.LEVELS`.
        seed: the seed of the generators before each forward.
        tolerance: the relative error of gradients and losses to accept. By default they have to be equal bit for bit,
            or within the noise measured by runs that round differently.
        switch: a function of the model and the mode, or None for off, that switches checkpointing. By default the
            method of transformers, diffusers or timm, or the model's surgery.

    Returns:
        The report: its outcome for each mode and level, faults with their causes, and cost. A report in which nothing
        was measured is not `ok`.

    Raises:
        VerifyError: no verdict is possible: a model in evaluation mode, on meta, or without a method to switch
            checkpointing on; inputs that do not fit; a loss that needs no gradient, or is NaN; or an option that is
            not one of those above.
    """
    examination = Examination(model, inputs, loss=loss, levels=levels, seed=seed, tolerance=tolerance, switch=switch)
    return examination.run(modes)


class Examination:
    """The examination of one model with one set of inputs: first the reference, then any mode compared with it.

    It is for callers that want each result as soon as it is there, or a time limit for each; `verify` does it all.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        loss: Callable[[Any], Tensor] | None = None,
        levels: Levels = "all",
        seed: int = 0,
        tolerance: float | None = None,
        switch: Switch | None = None,
    ) -> None:
        inner, named = checked_model(unwrapped(model)), checked_inputs(inputs)
        is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
        if tolerance is not None and not (is_number and tolerance >= 0):
            raise VerifyError(f"the tolerance is {tolerance!r}: give a relative error of 0 or more, such as 1e-4")
        wanted = LEVELS if levels == "all" else checked_names(levels, LEVELS, "level")
        self._own_switch = switch
        self._setup = Setup(
            given=model,
            inputs=named,
            tolerance=None if tolerance is None else float(tolerance),
            levels=tuple(level for level in LEVELS if level in wanted),
            blocks=blocks_of(inner),
            loss=loss,
            seed=seed,
            switch=switch or switch_of(inner),
            own_switch=switch is not None,
        )
        self._reference: Reference | None = None
        self._seconds: dict[str, float] = {}

    def run(self, modes: Mode | Iterable[Mode] = MODES) -> Report:
        """Run the reference, and examine every mode in `modes`."""
        wanted: tuple[Mode, ...] = checked_names(modes, MODES, "mode")
        report = self._agreed_reference()
        examined = () if report.problem else tuple(self.examine(mode) for mode in wanted)
        seconds: dict[str, float] = {**report.seconds, **{mode.mode: mode.seconds for mode in examined}}
        return replace(report, modes=examined, seconds=seconds)

    def reference(self) -> Report:
        """Run without checkpointing, for a report without modes. Raises VerifyError if that run is no reference."""
        model = self._setup.model
        supported = bool(getattr(model, CLAIM, True)) or has_surgery(model)
        layers = any(block.kind == "layer" for block in self._setup.blocks.values())
        if self._reference is None and (supported or layers):
            started = time.perf_counter()
            self._reference = Reference.of(self._setup)
            self._seconds["reference"] = time.perf_counter() - started
        unsupported = f"{self._setup.name} says that it does not support gradient checkpointing"
        return Report(
            model=self._setup.name,
            model_type=str(getattr(getattr(model, "config", None), "model_type", "") or ""),
            facts=ModelFacts(
                str(next((p.dtype for p in model.parameters()), "")).removeprefix("torch."),
                sum(p.numel() for p in model.parameters()),
            ),
            versions=installed_versions(),
            reference=self._reference.record.memory.timeline if self._reference else None,
            problem="" if self._reference else unsupported,
            supported=supported,
            seconds=dict(self._seconds),
        )

    def examine(self, mode: Mode) -> ModeReport:
        """Run with checkpointing in this mode and compare; the reference runs first if it has not yet.

        A mode in which the model's surgery does not run is skipped. Raises VerifyError if there is no reference.
        """
        if mode != SURGERY_MODE and has_surgery(self._setup.model):
            return ModeReport.skipped(mode, SkipKind.ALWAYS_NON_REENTRANT)
        if self._reference is None:
            report = self.reference()
            if self._reference is None:
                raise VerifyError(report.problem)
        return ModeJudge(self._setup, self._reference, mode).report()

    def repaired(self) -> tuple[Examination, str]:
        """Call `wrap_blocks` on the model; return an examination of the result, and the table of the surgery.

        The result is compared with the run of the model as it was, if there was one and the blocks are the same;
        otherwise with a new run. Raises SurgeryError if the surgery cannot be done, VerifyError if there is no run to
        compare with.
        """
        before = self._setup
        surgery = wrap_blocks(before.model)
        after = Examination(
            before.given,
            before.inputs,
            loss=before.loss,
            levels=before.levels,
            seed=before.seed,
            tolerance=before.tolerance,
            switch=self._own_switch,
        )
        if self._reference is not None and after._setup.blocks.keys() == before.blocks.keys():
            after._reference = Reference(after._setup, self._reference.record, before_surgery=True)
            return after, str(surgery)
        report = after.reference()
        if after._reference is None:
            raise VerifyError(report.problem)
        if after._reference.irreproducible:
            raise VerifyError(f"two runs of {before.name} without checkpointing differ: nothing can be compared")
        return after, str(surgery)

    def _agreed_reference(self) -> Report:
        """Return the reference once every rank has one. Raises VerifyError on every rank if any has none."""
        report, problem = None, None
        try:
            report = self.reference()
        except VerifyError as error:
            problem = str(error)
        if "ranks" in self._setup.levels:
            problem = first_problem(self._setup.given, problem)
        if report is None or problem is not None:
            raise VerifyError(problem)
        return report
