"""Judge the level "ranks": whether checkpointing gives the same on every rank, and what one process would get.

This runs one more step per mode, through DistributedDataParallel, and compares. What a rank sees of its module alone
is left to the other levels, and a model without that wrapper is not judged here.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.measure.compare import compare, noise_floors, severity
from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.record import RunRecord, StepError, StepPart
from ckpt_surgery.measure.restore import without_gradients
from ckpt_surgery.measure.results import Detail, Fault, FaultCause, LevelVerdict, Mode, Skip
from ckpt_surgery.runtime.tools.tensors import inner_tensors, raw_bytes, shape_of
from ckpt_surgery.text import one_line, ranks_in_words

_CHUNK = 16 * 2**20
"""Bytes of a tensor that are copied from its device at a time, for its digest."""
TIMEOUT = 120.0
"""Seconds that one rank waits for another inside a step. Outside it waits four times as long, because a rank that
hangs in its step has to give that up first."""

_LONGEST = 240  # characters of an error
# torch raises RuntimeError for these and for much else: only its words tell them apart
_READY_TWICE = "mark a variable ready only once"
_RANK_GONE = ("Timed out", "Connection closed", "Connection reset")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module that DistributedDataParallel wraps, or any other module itself."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return inner if isinstance(inner, nn.Module) else model


def obstacle(model: nn.Module) -> SkipKind | None:
    """Return what keeps the ranks from being compared; None if they can be."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return SkipKind.ONE_PROCESS
    if not isinstance(model, DistributedDataParallel):
        return SkipKind.NOT_WRAPPED
    if dist.get_world_size(model.process_group) != dist.get_world_size():
        return SkipKind.OTHER_GROUP
    return SkipKind.MIXED_PRECISION if getattr(model, "mixed_precision", None) is not None else None


def first_problem(model: nn.Module, problem: str | None) -> str | None:
    """Exchange problems between the ranks, and return the first one that any rank has, with its ranks, or None.

    Every rank has to call this at the same time. If ranks are not compared, it returns `problem`.
    """
    if obstacle(model) is not None:
        return problem
    try:
        with _group("gloo", 4 * TIMEOUT) as group:
            problems: list[str | None] = _gathered(problem, group)
    except RuntimeError as error:
        return problem or f"a rank is missing: {_short(error)}"
    first = next((text for text in problems if text is not None), None)
    if first is None:
        return None
    holders = [rank for rank, text in enumerate(problems) if text == first]
    return f"on {ranks_in_words(holders, len(problems))}: {first}"


def judge_ranks(
    model: nn.Module,
    mode: Mode,
    reference: RunRecord,
    faults: Sequence[Fault],
    step: Callable[[nn.Module], RunRecord],
    *,
    tolerance: float | None = None,
) -> LevelVerdict:
    """Compare the ranks after one checkpointed step through `model`, a DistributedDataParallel.

    Every rank calls it at the same time, and gets the same faults. `reference` is this rank's run of the inner
    module without checkpointing, `faults` are those that the other levels found on this rank. `step` runs the
    checkpointed step on what it is given: a module with the parameters of the inner one and a forward that goes
    through a copy of the wrapper.

    Checks that weights are the same on every rank, that every other level holds on every rank, that the step
    ends, that gradients are equal across ranks bit for bit, and that they are what one process gets from the
    joined batch: the mean over ranks of what each rank's own inputs and seed give without wrapper and without
    checkpointing, which is what DistributedDataParallel promises. `tolerance` as in `compare`.

    The copy has the wrapper's options, hooks and class, its own reducer and its own process group: the wrapper
    itself stays unused and intact, also after a step that breaks, and no wait is longer than four times `TIMEOUT`.
    Costs one step, and while it lasts a second set of gradients.
    """
    if (hindrance := obstacle(model)) is not None:
        skip = Skip(("ranks",), hindrance, {"model": type(unwrapped(model)).__name__})
        return LevelVerdict(skips=(skip,), measured=False)
    assert isinstance(model, DistributedDataParallel)
    try:
        with _group("gloo", 4 * TIMEOUT) as group:
            comparison = _Comparison(model, mode, reference, tuple(faults), group, tolerance)
            return LevelVerdict(tuple(comparison.faults(step)))
    except RuntimeError as error:  # torch raises nothing narrower if a rank is missing
        missing = Fault(FaultKind.RANK_MISSING, details={"error": _short(error)})
        return LevelVerdict((missing,))


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One rank's part in the comparison. Ranks decide by what all of them know, so that they stay together."""

    wrapper: DistributedDataParallel
    mode: Mode
    reference: RunRecord
    own: tuple[Fault, ...]
    group: dist.ProcessGroup
    tolerance: float | None

    def faults(self, step: Callable[[nn.Module], RunRecord]) -> list[Fault]:
        unequal = self._unequal_modules()
        if unequal:
            return unequal
        elsewhere, breaks = self._faults_elsewhere()
        if breaks:  # a step that breaks in the bare module breaks in the wrapped one, in the midst of its collectives
            return elsewhere
        run, errors = self._run(step)
        if any(errors):
            return [*elsewhere, *self._broken(errors)]
        unequal = [*self._unequal_gradients(run), *self._unlike_joined(run)]
        if any(fault.level in ("set", "values") for faults in _gathered(self.own, self.group) for fault in faults):
            alone = FaultCause(CauseKind.WRONG_WITHOUT_WRAPPER)
            unequal = [replace(fault, explanation=alone) for fault in unequal]
        return [*elsewhere, *unequal]

    def _unequal_modules(self) -> list[Fault]:
        parameters = dict(self.wrapper.module.named_parameters())
        facts = {name: f"{tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in parameters.items()}
        by_rank = _gathered(facts, self.group)
        if any(facts != by_rank[0] for facts in by_rank):
            names = (n for facts in by_rank for n in facts if any(other.get(n) != facts[n] for other in by_rank))
            odd = _ranks([facts != by_rank[0] for facts in by_rank])
            return [Fault(FaultKind.PARAMETERS_DIFFER, tuple(dict.fromkeys(names)), odd)]
        weights = _gathered({name: digest(p) for name, p in parameters.items()}, self.group)
        return _different(weights, FaultKind.WEIGHTS_DIFFER)

    def _faults_elsewhere(self) -> tuple[list[Fault], bool]:
        """Return the faults that only some ranks found, and whether any rank's own step breaks."""
        by_rank: list[tuple[Fault, ...]] = _gathered(self.own, self.group)
        levels = [{fault.level for fault in faults} for faults in by_rank]
        disagreements = []
        for rank, faults in enumerate(by_rank):
            for fault in faults:
                failing = [fault.level in failed for failed in levels]
                if not all(failing) and failing.index(True) == rank:
                    details = _ranks(failing)
                    disagreements.append(Fault(FaultKind.RANKS_DISAGREE, fault.subjects, details, underlying=fault))
        return disagreements, any("run" in failed for failed in levels)

    def _run(self, step: Callable[[nn.Module], RunRecord]) -> tuple[RunRecord, list[StepError | None]]:
        backend, module = dist.get_backend(self.wrapper.process_group), self.wrapper.module
        # a wrapper that keeps gradients in its buckets takes over those that exist when it is made
        with _group(backend, TIMEOUT) as own_group, without_gradients(module):
            try:
                copy = _copy(self.wrapper, own_group)
            except Exception as error:  # whatever it is, the other ranks have to hear of it
                return self.reference, _gathered(StepError.of(StepPart.WRAP, error), self.group)
            run = step(_Through(module, copy))
            # The wrapper must not be the last to hold the group: it would end the group's threads while it holds
            # the interpreter's lock, and they may be waiting for that lock (seen with gloo, torch 2.13).
            del copy
            gc.collect()
            if not run.error:  # the group has to live until the others are through as well
                return run, _gathered(None, self.group)
        # a rank whose step breaks leaves its group first, so that no other waits there for what will not come
        return run, _gathered(run.error, self.group)

    def _broken(self, errors: Sequence[StepError | None]) -> list[Fault]:
        """Return one fault for each error, with the ranks that have it."""
        texts = [None if error is None else _short(error) for error in errors]
        first = {text: error for text, error in zip(reversed(texts), reversed(errors), strict=True) if error}
        return [
            Fault(
                FaultKind.RANK_STEP_RAISED,
                details={"error": text, **_ranks([other == text for other in texts])},
                explanation=self._why(first[text], every_rank=all(errors)),
            )
            for text in dict.fromkeys(filter(None, texts))
        ]

    def _why(self, error: StepError, *, every_rank: bool) -> FaultCause | None:
        if not every_rank and any(words in error.message for words in _RANK_GONE):
            return FaultCause(CauseKind.UNEQUAL_COLLECTIVES)
        if self.mode != "reentrant" or _READY_TWICE not in error.message:
            return None
        unused = self.wrapper.find_unused_parameters
        return FaultCause(CauseKind.UNUSED_PARAMETERS if unused else CauseKind.SHARED_PARAMETER)

    def _unequal_gradients(self, run: RunRecord) -> list[Fault]:
        digests = {name: None if g is None else digest(g) for name, g in run.gradients.items()}
        return _different(_gathered(digests, self.group), FaultKind.GRADIENTS_DIFFER)

    def _unlike_joined(self, run: RunRecord) -> list[Fault]:
        joined = replace(self.reference, gradients=self._joined(), input_gradients={}, error=None)
        alone = replace(run, input_gradients={})
        tolerance = joined.root_of_eps if self.tolerance is None else self.tolerance
        verdict = compare(joined, alone, floors=noise_floors(joined), tolerance=tolerance)
        errors = {
            FaultKind.MEAN_LOST: dict.fromkeys(verdict.lost, 0.0),
            FaultKind.MEAN_GAINED: dict.fromkeys(verdict.gained, 0.0),
            FaultKind.MEAN_VALUE: {name: (verdict.errors or {})[name] for name in verdict.wrong},
        }
        by_rank, faults = _gathered(errors, self.group), []
        for kind in errors:
            worst: dict[str, float] = {}
            for name, error in [item for each in by_rank for item in each[kind].items()]:
                worst[name] = max(worst.get(name, 0.0), severity(error))
            if worst:
                names = tuple(sorted(worst, key=worst.__getitem__, reverse=True))
                largest = {"error": worst[names[0]]} if kind is FaultKind.MEAN_VALUE else {}
                details = {**largest, "count": len(names), "total": len(run.gradients)}
                faults.append(Fault(kind, names, details | _ranks([bool(each[kind]) for each in by_rank])))
        return faults

    def _joined(self) -> dict[str, Tensor | None]:
        """Return the mean over ranks of every gradient; None if no rank has it. One that a rank lacks counts as zero.

        All ranks add up the same tensors in the same order, whatever gradients they have.
        """
        own = self.reference.gradients
        present = _gathered({name: gradient is not None for name, gradient in own.items()}, self.group)
        joined: dict[str, Tensor | None] = {}
        for name, parameter in self.wrapper.module.named_parameters():
            if name not in own or not any(ranks.get(name) for ranks in present):
                joined |= {name: None} if name in own else {}
                continue
            total = torch.zeros(parameter.shape, dtype=torch.complex128 if parameter.is_complex() else torch.float64)
            if (gradient := own[name]) is not None:
                total += gradient.to_dense()
            dist.all_reduce(total, group=self.group)
            joined[name] = (total / len(present)).to(parameter.dtype)
        return joined


class _Through(nn.Module):
    """A module with the same attributes, whose forward goes through a wrapper of it."""

    def __init__(self, module: nn.Module, wrapper: nn.Module) -> None:
        super().__init__()
        vars(self).update(_inner=module, _wrapper=wrapper)  # not as submodules: names stay those of the module

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_inner"], name)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        found: Iterator[tuple[str, nn.Module]] = vars(self)["_inner"].named_modules(*args, **kwargs)
        return found

    def train(self, mode: bool = True) -> _Through:
        vars(self)["_inner"].train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["_wrapper"](*args, **kwargs)


def _copy(wrapper: DistributedDataParallel, group: dist.ProcessGroup) -> DistributedDataParallel:
    """Wrap the same module a second time with the same options, class and hooks, in another process group."""
    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    wanted: dict[str, Any] = {
        "init_sync": False,
        "bucket_cap_mb": None if wrapper.bucket_bytes_cap_default else wrapper.bucket_bytes_cap / 2**20,
        **{name: getattr(wrapper, name, None) for name in _OPTIONS},
    }
    if "forward_sync_buffers" not in parameters:
        wanted["broadcast_buffers"] = wrapper.broadcast_buffers
    options = {name: value for name, value in wanted.items() if name in parameters and value is not None}
    copy = DistributedDataParallel(wrapper.module, process_group=group, **options)
    theirs = vars(wrapper)
    hooks = {name: value for name, value in theirs.items() if "hook" in name and isinstance(value, dict)}
    vars(copy).update({name: value for name, value in theirs.items() if name not in vars(copy)} | hooks)
    copy.__class__ = type(wrapper)
    for hook, state in theirs.get("_comm_hooks", ()):
        copy.register_comm_hook(state, hook)
    return copy


_OPTIONS = (
    "device_ids",
    "dim",
    "find_unused_parameters",
    "forward_sync_buffers",
    "gradient_as_bucket_view",
    "output_device",
    "skip_all_reduce_unused_params",
    "static_graph",
)


@contextmanager
def _group(backend: str, seconds: float) -> Iterator[dist.ProcessGroup]:
    """Make a process group of all ranks, with a limit in seconds to every wait, and destroy it on exit."""
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=seconds))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _gathered(value: Any, group: dist.ProcessGroup) -> list[Any]:
    by_rank = [None] * dist.get_world_size(group)
    dist.all_gather_object(by_rank, value, group=group)
    return by_rank


def _different(by_rank: Sequence[Mapping[str, str | None]], kind: FaultKind) -> list[Fault]:
    """Return a fault of this kind for each group of ranks that differ from the first under the same names.

    Where some ranks have nothing under a name, the fault is that gradients are missing.
    """
    names: dict[tuple[FaultKind, tuple[bool, ...]], list[str]] = {}
    for name in by_rank[0]:
        values = [values.get(name) for values in by_rank]
        odd, missing = tuple(value != values[0] for value in values), tuple(value is None for value in values)
        if any(odd):
            group = (FaultKind.GRADIENTS_MISSING, missing) if any(missing) else (kind, odd)
            names.setdefault(group, []).append(name)
    return [
        Fault(kind, tuple(group), {"count": len(group), "total": len(by_rank[0]), **_ranks(ranks)})
        for (kind, ranks), group in names.items()
    ]


def _ranks(concerned: Sequence[bool]) -> dict[str, Detail]:
    """Return the ranks that a fault concerns as its details; there is one truth value for each rank."""
    return {"ranks": tuple(rank for rank, here in enumerate(concerned) if here), "world_size": len(concerned)}


def _short(error: object) -> str:
    """Return the first sentence of an error on one line, without the leading place in torch's source."""
    text = re.sub(r"\[/\S+\] ", "", one_line(error))
    return text.partition(". ")[0].removesuffix(".")[:_LONGEST]


def digest(tensor: Tensor) -> str:
    """Return the sha256 of a tensor's bits, shape and dtype: two are equal exactly where `same_bits` holds."""
    sha = hashlib.sha256(f"{tensor.dtype} {tuple(shape_of(tensor))}".encode())
    for inner in inner_tensors(tensor):
        for part in torch.split(raw_bytes(inner), _CHUNK):
            sha.update(part.cpu().numpy().tobytes())
    return sha.hexdigest()
