"""One policy of `wrap_blocks(save=...)` on one tiny model, held against the same model without a surgery."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from benchmarks.policies import Check, Family, Outcome
from benchmarks.survey import step_as_it_stands
from ckpt_surgery import SurgeryError, tiny_model, verify, wrap_blocks
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import SURGERY_MODE
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.tiny import model_classes

SEEDS = (0, 1)
OFFLOAD = {"offload": "cpu", "save_offload": True}
_NOTHING = "the blocks run nothing of the kind"
_WRITTEN = "writes that in place afterwards"


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy's effect on a model at one rate of dropout, and the failed checks.

    `results` of `operators` were kept, of so many `bytes` by the summary; the meter finds so many `added`. `unheld`
    are those of what blocks return and nothing else keeps.
    """

    outcome: Outcome
    failed: tuple[Check, ...] = ()
    operators: tuple[str, ...] = ()
    results: int = 0
    bytes: int = 0
    added: int = 0
    unheld: int = 0


@dataclass
class Subject:
    """A copy of a model that is stepped, with its inputs and its blocks by name."""

    model: Any
    inputs: Mapping[str, Any]
    blocks: Mapping[str, nn.Module]
    unheld: int = 0
    """Of the last step: the bytes of what blocks returned that nothing kept for the backward."""

    @property
    def surgery(self) -> Any:
        """The surgery of a model that has one."""
        return self.model._ckpt_surgery

    @property
    def summary(self) -> Any:
        """What the one name of `save` kept in the last step."""
        (summary,) = self.surgery.summary().kept
        return summary

    def run(self, seed: int = 0) -> RunRecord:
        """Measure a step with the model as it stands. Raises RuntimeError where it does not run."""
        returned: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

        def note(block: nn.Module, arguments: Any, output: Any) -> None:
            for tensor in tensors(output):
                storage = tensor.untyped_storage()
                returned[storage._cdata] = weakref.ref(storage), storage.nbytes()

        def weigh(_: Tensor) -> None:
            self.unheld = sum(size for storage, size in returned.values() if storage() is None)

        def loss(output: Any) -> Tensor:
            value = loss_of(output)
            value.register_hook(weigh)  # type: ignore[no-untyped-call]
            return value

        handles = [block.register_forward_hook(note) for block in self.blocks.values()]
        options: dict[str, Any] = {"blocks": self.blocks, "checkpointing": "non_reentrant"}
        try:
            record: RunRecord = step_as_it_stands(self.model, self.inputs, seed=seed, loss=loss, **options)
        finally:
            for handle in handles:
                handle.remove()
        return record


@dataclass(frozen=True)
class Bench:
    """The tiny model of a family as built, and the names of its blocks."""

    model: nn.Module
    inputs: Mapping[str, Any]
    names: tuple[str, ...]

    @classmethod
    def of(cls, family: Family) -> Bench:
        """Make the model, in training mode and without dropped layers."""
        entry = model_classes()[family.model_class]
        options = {**dict.fromkeys(("layerdrop", "encoder_layerdrop", "decoder_layerdrop"), 0.0), **family.options}
        tiny = tiny_model(entry.load(), entry.config_class(entry.model_type), options=options)
        model = tiny.model.train()
        surgery = wrap_blocks(copy.deepcopy(model))
        return cls(model, tiny.inputs, tuple(block.name for stack in surgery.stacks for block in stack.blocks))

    def subject(self, **options: Any) -> Subject:
        """Copy the model; with options, after `wrap_blocks`."""
        own: Any = copy.deepcopy(self.model)
        blocks = {name: own.get_submodule(name) for name in self.names}
        subject = Subject(own, self.inputs, blocks)
        if options:
            wrap_blocks(own, **options)
        return subject

    def measured(self, save: str, rate: float) -> Setting:
        """Try a policy, with dropout at this rate."""
        for module in self.model.modules():
            for name, value in vars(module).items():
                drops = "drop" in name or (name == "p" and isinstance(module, _DropoutNd))
                if drops and "layerdrop" not in name and isinstance(value, float):
                    setattr(module, name, rate)
        kept = self.subject(save=save, self_check="never")
        try:
            loss_of(kept.model(**kept.inputs)).backward()  # type: ignore[no-untyped-call]
        except SurgeryError as error:
            if _NOTHING in str(error) or _WRITTEN in str(error):
                return Setting(Outcome.NOTHING if _NOTHING in str(error) else Outcome.WRITTEN)
            raise
        results = sum(count.results for count in kept.surgery.policies[0].kept.values())
        references = [self.subject().run(seed) for seed in SEEDS]
        passed = {
            Check.LISTED: bool(results),
            Check.ONCE: _once(kept),
            Check.GRADIENTS: self._same(references, save=save),
            Check.OFFLOAD_GRADIENTS: self._same(references, save=save, **OFFLOAD),
        }
        setting = self._weighed(save)
        failed = (*(check for check, right in passed.items() if not right), *setting.failed)
        return replace(setting, failed=failed, results=results)

    def _weighed(self, save: str) -> Setting:
        """Measure the bytes of a policy that keeps something.

        Each is measured in the first step of a copy: what a model keeps from its first step on is in all of them.
        """
        without, kept = self.subject(self_check="never"), self.subject(save=save, self_check="never")
        before, after = (subject.run().memory.kept for subject in (without, kept))
        told, added, unheld = kept.summary, after - before, without.unheld
        failed = () if 0 <= added - told.bytes <= unheld else (Check.BYTES,)
        return Setting(Outcome.KEPT, failed, tuple(told.operators), bytes=told.bytes, added=added, unheld=unheld)

    def _same(self, references: Sequence[RunRecord], **options: Any) -> bool:
        """Tell whether a model has the gradients of the references bit for bit, with the self-check at work."""
        subject = self.subject(**options, self_check="always")
        try:
            runs = [subject.run(seed) for seed in SEEDS]
        except RuntimeError:
            return False
        return all(
            run.loss == other.loss
            and _same_tensors(run.gradients, other.gradients)
            and _same_tensors(run.buffers, other.buffers)
            for run, other in zip(runs, references, strict=True)
        )


def measured(family: Family, save: str, rates: Mapping[str, float]) -> dict[str, Any]:
    """Try a policy on a family, with deterministic kernels."""
    torch.use_deterministic_algorithms(True)
    bench = Bench.of(family)
    return {name: asdict(bench.measured(save, rate)) for name, rate in rates.items()}


def _same_tensors(ours: Mapping[str, Tensor | None], theirs: Mapping[str, Tensor | None]) -> bool:
    pairs = [(ours[name], theirs[name]) for name in ours] if ours.keys() == theirs.keys() else [(None, torch.ones(1))]
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def _once(subject: Subject) -> bool:
    """Tell whether `verify` finds each block recomputed once, and nothing that is kept multiplied again."""
    report = verify(subject.model, subject.inputs, modes=SURGERY_MODE)
    wrong = [
        fault for _, fault in report.faults if fault.kind is FaultKind.BACKWARD_FLOPS or fault.level == "recompute"
    ]
    return bool(report.modes) and not wrong
