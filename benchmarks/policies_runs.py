"""One policy of `wrap_blocks(save=...)` on one tiny model, held against the same model without a surgery."""

from __future__ import annotations

import copy
import re
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.checkpoint import set_checkpoint_early_stop

from benchmarks.policies_report import FAMILIES, POLICIES, RATES, Check, Family, Outcome, Setting, case_of
from ckpt_surgery import SurgeryError, tiny_model, wrap_blocks
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import as_it_stands
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.runtime.selective.policies import VOCABULARY
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.tiny import model_classes

SEEDS = (0, 1)
_LISTED = re.compile(r"the blocks run nothing of the kind: .* they run: (.*)$")
_WRITTEN = "writes that in place afterwards"
_ENTRY = re.compile(r"(\S+) \((\d+)\)")
_LAYER_DROP = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
_EXPECTED = ("matmul", "norm", "conv")
"""The names that stand for operators wherever a block runs them, so that their results can be counted beforehand."""


class StepRaised(Exception):
    """A step did not run."""


@dataclass
class OperatorCounts:
    """How often operators really ran, by name and overload: in each call of a block, and in the backward."""

    calls: list[tuple[str, Counter[str]]] = field(default_factory=list)
    backward: Counter[str] = field(default_factory=Counter)

    def in_blocks(self) -> Counter[str]:
        """In all calls of blocks together, by name alone."""
        return _by_name(sum((counts for _, counts in self.calls), Counter[str]()))


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """Counts operators; those that make views cost nothing, and are left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = OperatorCounts()
        self.into: Counter[str] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.into is not None and not func.is_view:
            self.into[f"{func._schema.name}.{func._overloadname}"] += 1
        return func(*args, **(kwargs or {}))

    def entering(self, name: str) -> Callable[..., None]:
        """A hook before the block of this name; one that needs no gradient is not checkpointed, and not counted."""

        def enter(block: nn.Module, *arguments: Any) -> None:
            if any(tensor.requires_grad for tensor in (*block.parameters(), *tensors(arguments))):
                self.into = Counter()
                self.counts.calls.append((name, self.into))

        return enter

    def leave(self, *_: Any) -> None:
        """A hook behind a block."""
        self.into = None


class UnseenHost:
    """Keeps what leaves the device where the meter does not look: the host of a measurement on a processor alone."""

    def put(self, source: Tensor) -> Tensor:
        """A copy, at once."""
        with _disable_current_modes():
            return source.clone()

    def finish(self, host_copy: Tensor) -> None:
        """It is done."""

    def start(self, host_copy: Tensor) -> Tensor:
        """Nothing is copied before it is asked for."""
        return host_copy

    def get(self, device_copy: Tensor) -> Tensor:
        """A copy that the meter sees."""
        return device_copy.clone()

    def release(self) -> None:
        """Nothing is held."""


@dataclass
class Subject:
    """A model that is stepped, with its inputs and its blocks by name; `surgery` is None for one without."""

    model: Any
    inputs: Mapping[str, Any]
    blocks: Mapping[str, nn.Module]
    offloader: Offloader | None = None
    counts: OperatorCounts = field(default_factory=OperatorCounts)
    unheld: int = 0
    """Of the last step: the bytes of what blocks returned that nothing kept for the backward."""

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any], names: Sequence[str], **options: Any) -> Subject:
        """A copy of a model; with options, after `wrap_blocks`."""
        own = copy.deepcopy(model)
        offloader = None
        if options:
            wrap_blocks(own, **options)
            if "offload" in options:
                offloader = Offloader(UnseenHost(), minimum_bytes=0)
                for name in names:
                    attributes = vars(own.get_submodule(name))
                    attributes[FUNCTION] = replace(attributes[FUNCTION], offloader=offloader)
        return cls(own, inputs, {name: own.get_submodule(name) for name in names}, offloader)

    @property
    def surgery(self) -> Any:
        """What `wrap_blocks` returned."""
        return self.model._ckpt_surgery

    def summary(self) -> KeptSummary:
        """What the one name of `save` kept in the last step."""
        (summary,) = self.surgery.summary().kept
        return cast(KeptSummary, summary)

    def counted(self) -> OperatorCounts:
        """The operators of a step; recomputes run whole blocks, and do not stop where torch has all it needs."""
        mode = CountingMode()
        self.counts = mode.counts
        handles = []
        for name, block in self.blocks.items():
            handles.append(block.register_forward_pre_hook(mode.entering(name), with_kwargs=True))
            handles.append(block.register_forward_hook(mode.leave))
        torch.manual_seed(0)
        with set_checkpoint_early_stop(False), mode:
            loss = loss_of(self.model(**self.inputs))
            mode.into = mode.counts.backward
            loss.backward()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
        self.model.zero_grad()
        return mode.counts

    def run(self, seed: int = 0) -> RunRecord:
        """A measured step, with the model as it stands. Raises StepRaised."""
        returned: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

        def note(block: nn.Module, arguments: Any, output: Any) -> None:
            for tensor in tensors(output):
                storage = tensor.untyped_storage()
                returned[storage._cdata] = weakref.ref(storage), storage.nbytes()

        def weigh(_: Tensor) -> None:
            self.unheld = sum(size for storage, size in returned.values() if storage() is None)

        def loss(output: Any) -> Tensor:
            if self.offloader is not None:
                self.offloader._wait_for(0)  # what is on its way has left
            value = loss_of(output)
            value.register_hook(weigh)  # type: ignore[no-untyped-call]
            return value

        handles = [block.register_forward_hook(note) for block in self.blocks.values()]
        record = run_step(
            self.model,
            self.inputs,
            blocks=self.blocks,
            checkpointing="non_reentrant",
            seed=seed,
            loss=loss,
            open_gates=True,
            switch=as_it_stands,
        )
        for handle in handles:
            handle.remove()
        if record.error is not None:
            raise StepRaised(str(record.error))
        return record


@dataclass(frozen=True)
class Bench:
    """The model of a family, as it is built, and the names of its blocks."""

    model: nn.Module
    inputs: Mapping[str, Any]
    names: tuple[str, ...]

    @classmethod
    def of(cls, family: Family) -> Bench:
        """A tiny model in training mode that drops no layers."""
        entry = model_classes()[family.model_class]
        options = {**dict.fromkeys(_LAYER_DROP, 0.0), **family.options}
        tiny = tiny_model(entry.load(), entry.config_class(entry.model_type), options=options)
        model = tiny.model.train()
        surgery = wrap_blocks(copy.deepcopy(model))
        names = tuple(block.name for stack in surgery.stacks for block in stack.blocks)
        return cls(model, tiny.inputs, names)

    def measured(self, save: str, rate: float) -> Setting:
        """How a policy does, with dropout at this rate."""
        _drop(self.model, rate)
        kept = self.subject(save=save, self_check="never")
        plain = self.subject().counted()
        expected = _expected(save, plain)
        try:
            ours = kept.counted()
        except SurgeryError as error:
            if not (match := _LISTED.search(str(error))):
                return Setting(Outcome.WRITTEN) if _WRITTEN in str(error) else _raise(error)
            wrong = _listed(match[1]) != kept.counts.in_blocks() or expected not in (0, None)
            return Setting(Outcome.NOTHING, (Check.LISTED,) if wrong else ())
        made = {name: count.results for (_, name), count in kept.surgery.policies[0].kept.items()}
        results = sum(made.values())
        failed = [] if results else [Check.LISTED]
        failed += [] if _run_once(made, ours, plain) else [Check.ONCE]
        failed += [] if expected in (None, results) else [Check.ALL]
        references = [self.subject().run(seed) for seed in SEEDS]
        failed += [] if self._same(references, save=save) else [Check.GRADIENTS]
        options = {"save_offload": True, "offload": "cpu"}
        failed += [] if self._same(references, save=save, **options) else [Check.OFFLOAD_GRADIENTS]
        setting = self._weighed(save)
        return replace(setting, failed=(*failed, *setting.failed), results=results)

    def _weighed(self, save: str) -> Setting:
        """The bytes of a policy that keeps something, on the device and away from it.

        Each is measured in the first step of a copy: what a model keeps from its first step on is in all of them.
        """
        without, kept = self.subject(self_check="never"), self.subject(save=save, self_check="never")
        before, after = without.run(), kept.run()
        summary, unheld = kept.summary(), without.unheld
        moving: dict[str, Any] = {"offload": "cpu", "self_check": "never"}
        away, beside = self.subject(**moving), self.subject(**moving, save=save)
        moved = self.subject(**moving, save=save, save_offload=True)
        here = away.run().memory.kept
        beside_bytes, stayed = beside.run().memory.kept - here, moved.run().memory.kept - here
        assert away.offloader is not None
        assert moved.offloader is not None
        left = moved.offloader.stats.bytes - away.offloader.stats.bytes
        added = after.memory.kept - before.memory.kept
        of_one_block = max(moved.surgery.policies[0].bytes.values())
        totals = {
            Check.BYTES: (added, summary),
            Check.BESIDE_BYTES: (beside_bytes, beside.summary()),
            Check.OFFLOAD_BYTES: (left + stayed, moved.summary()),
        }
        failed = [check for check, (found, told) in totals.items() if not 0 <= found - told.bytes <= unheld]
        return Setting(
            Outcome.KEPT,
            (*failed, *([Check.STAYS] if stayed > of_one_block + unheld else [])),
            operators=tuple(summary.operators),
            bytes=summary.bytes,
            added=added,
            unheld=unheld,
            left=left,
            stayed=stayed,
        )

    def subject(self, **options: Any) -> Subject:
        """A copy of the model; with options, after `wrap_blocks`."""
        return Subject.of(self.model, self.inputs, self.names, **options)

    def _same(self, references: Sequence[RunRecord], **options: Any) -> bool:
        """Whether a model has the gradients of the references bit for bit, with the self-check at work."""
        subject = self.subject(**options, self_check="always")
        try:
            return all(_equal(subject.run(seed), reference) for seed, reference in zip(SEEDS, references, strict=True))
        except StepRaised:
            return False


def examine(case: str) -> dict[str, Any]:
    """What a policy does to a family, by rate of dropout, under the key settings."""
    family, save = next((f, save) for f in FAMILIES for save in POLICIES if case_of(f.name, save) == case)
    bench = Bench.of(family)
    return {"settings": {name: asdict(bench.measured(save, rate)) for name, rate in RATES.items()}}


def _raise(error: Exception) -> NoReturn:
    raise error


def _listed(text: str) -> Counter[str]:
    """The operators, and how often they ran, in the end of the error of a name that matches nothing."""
    return Counter({name.replace(".", "::", 1): int(number) for name, number in _ENTRY.findall(text)})


def _equal(run: RunRecord, reference: RunRecord) -> bool:
    """Whether two steps have the same loss, gradients and buffers, by name and bit for bit."""
    return (
        run.loss == reference.loss
        and _same_tensors(run.gradients, reference.gradients)
        and _same_tensors(run.buffers, reference.buffers)
    )


def _same_tensors(ours: Mapping[str, Tensor | None], theirs: Mapping[str, Tensor | None]) -> bool:
    if ours.keys() != theirs.keys():
        return False
    pairs = [(ours[name], theirs[name]) for name in ours]
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def _run_once(kept: Mapping[str, int], ours: OperatorCounts, plain: OperatorCounts) -> bool:
    """Whether recomputes ran each operator as often as the forward, less what is kept; in the forward all ran."""
    forward, backward, own = plain.in_blocks(), _by_name(plain.backward), _by_name(ours.backward)
    if any(ours.in_blocks()[name] != forward[name] for name in kept):
        return False
    return all(own[name] - backward[name] == forward[name] - number for name, number in kept.items())


def _expected(save: str, plain: OperatorCounts) -> int | None:
    """How many results a name stands for, by what the blocks of the untouched model run; None where others decide."""
    name, _, every = save.partition(":") if not save.startswith("aten") else (save, "", "")
    if name in _EXPECTED:
        operators = VOCABULARY[name]
    elif name.startswith("aten."):
        operators = frozenset({name.replace("aten.", "aten::", 1)})
    else:
        return None
    step = int(every or 1)
    return sum(
        -(-sum(n for each, n in counts.items() if operators & {each, each.rpartition(".")[0]}) // step)
        for _, counts in plain.calls
    )


def _by_name(counts: Counter[str]) -> Counter[str]:
    """Without the overloads."""
    summed: Counter[str] = Counter()
    for name, number in counts.items():
        summed[name.rpartition(".")[0]] += number
    return summed


def _drop(model: nn.Module, rate: float) -> None:
    """Let everything in a model that can drop values at random do so at this rate; no whole layers."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = rate
        for name, value in vars(module).items():
            if "drop" in name and "layerdrop" not in name and isinstance(value, float):
                setattr(module, name, rate)
