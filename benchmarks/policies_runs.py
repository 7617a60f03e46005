"""One policy of `wrap_blocks(save=...)` on one tiny model, held against the same model without a surgery."""

from __future__ import annotations

import copy
import re
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import set_checkpoint_early_stop

from benchmarks.policies import Check, Family, Outcome
from ckpt_surgery import SurgeryError, tiny_model, wrap_blocks
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import as_it_stands
from ckpt_surgery.runtime.selective.policies import VOCABULARY
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.tiny import model_classes

SEEDS = (0, 1)
OFFLOAD = {"offload": "cpu", "save_offload": True}
_LISTED = re.compile(r"the blocks run nothing of the kind: .* they run: (.*)$")
_WRITTEN = "writes that in place afterwards"
_ENTRY = re.compile(r"(\S+) \((\d+)\)")


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


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """Counts the operators, views aside, that really run in each call of a block and in the backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Counter[str]] = []
        self.backward: Counter[str] = Counter()
        self.into: Counter[str] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.into is not None and not func.is_view:
            self.into[f"{func._schema.name}.{func._overloadname}"] += 1
        return func(*args, **(kwargs or {}))

    def enter(self, block: nn.Module, *arguments: Any) -> None:
        """Count a call of a block; one that needs no gradient is not checkpointed, and not counted."""
        if any(tensor.requires_grad for tensor in (*block.parameters(), *tensors(arguments))):
            self.into = Counter()
            self.calls.append(self.into)

    def leave(self, *_: Any) -> None:
        """Count no further behind a block."""
        self.into = None

    def in_blocks(self) -> Counter[str]:
        """Return how often each operator ran in all calls of blocks together, without overloads."""
        return _by_name(sum(self.calls, Counter[str]()))


@dataclass
class Subject:
    """A copy of a model that is stepped, with its inputs and its blocks by name."""

    model: Any
    inputs: Mapping[str, Any]
    blocks: Mapping[str, nn.Module]
    counts: CountingMode = field(default_factory=CountingMode)
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

    def counted(self) -> CountingMode:
        """Count the operators of a step whose recomputes run whole blocks, and do not stop where torch has enough."""
        self.counts = mode = CountingMode()
        handles = []
        for block in self.blocks.values():
            handles.append(block.register_forward_pre_hook(mode.enter, with_kwargs=True))
            handles.append(block.register_forward_hook(mode.leave))
        torch.manual_seed(0)
        with set_checkpoint_early_stop(False), mode:
            loss = loss_of(self.model(**self.inputs))
            mode.into = mode.backward
            loss.backward()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
        self.model.zero_grad()
        return mode

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
        options: dict[str, Any] = {"checkpointing": "non_reentrant", "open_gates": True, "switch": as_it_stands}
        record = run_step(self.model, self.inputs, blocks=self.blocks, seed=seed, loss=loss, **options)
        for handle in handles:
            handle.remove()
        if record.error is not None:
            raise RuntimeError(str(record.error))
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
        plain = self.subject().counted()
        expected = _expected(save, plain)
        try:
            ours = kept.counted()
        except SurgeryError as error:
            if match := _LISTED.search(str(error)):
                said = {name.replace(".", "::", 1): int(number) for name, number in _ENTRY.findall(match[1])}
                wrong = Counter(said) != kept.counts.in_blocks() or expected not in (0, None)
                return Setting(Outcome.NOTHING, (Check.LISTED,) if wrong else ())
            if _WRITTEN in str(error):
                return Setting(Outcome.WRITTEN)
            raise
        made = {name: count.results for (_, name), count in kept.surgery.policies[0].kept.items()}
        results = sum(made.values())
        references = [self.subject().run(seed) for seed in SEEDS]
        passed = {
            Check.LISTED: bool(results),
            Check.ONCE: _run_once(made, ours, plain),
            Check.ALL: expected in (None, results),
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


def _run_once(kept: Mapping[str, int], ours: CountingMode, plain: CountingMode) -> bool:
    """Tell whether recomputes ran each operator as often as the forward, less what is kept; in the forward all ran."""
    forward, backward, own = plain.in_blocks(), _by_name(plain.backward), _by_name(ours.backward)
    if any(ours.in_blocks()[name] != forward[name] for name in kept):
        return False
    return all(own[name] - backward[name] == forward[name] - number for name, number in kept.items())


def _expected(save: str, plain: CountingMode) -> int | None:
    """Count the results that a name stands for, by what the untouched model runs; None where others decide."""
    name, _, every = save.partition(":") if not save.startswith("aten") else (save, "", "")
    if name in ("matmul", "norm", "conv"):
        operators = VOCABULARY[name]
    elif name.startswith("aten."):
        operators = frozenset({name.replace("aten.", "aten::", 1)})
    else:
        return None
    step = int(every or 1)
    return sum(
        -(-sum(n for each, n in counts.items() if operators & {each, each.rpartition(".")[0]}) // step)
        for counts in plain.calls
    )


def _by_name(counts: Counter[str]) -> Counter[str]:
    summed: Counter[str] = Counter()
    for name, number in counts.items():
        summed[name.rpartition(".")[0]] += number
    return summed
