"""Level "ranks": whether what checkpointing gives is the same on every rank, and what one process would get.

Runs one more step per mode, through DistributedDataParallel, and compares. What a rank sees of its own module alone
is for the other levels, and a model that is not wrapped in DistributedDataParallel is not judged here.
"""

from __future__ import annotations

import gc
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

from ckpt_surgery.measure.compare import compare, noise_floors, weight
from ckpt_surgery.measure.restore import gradients_aside
from ckpt_surgery.measure.results import Fault, Mode
from ckpt_surgery.measure.step import RunRecord
from ckpt_surgery.runtime.tensors import digest
from ckpt_surgery.text import ranks_in_words

TIMEOUT = 120.0
"""Seconds that one rank waits for another inside a step. Outside it waits four times as long, because a rank that
hangs in its step has to give that up first."""

_LONGEST = 240
_TWICE = "mark a variable ready only once"
_ALONE = ("Timed out", "Connection closed", "Connection reset")
_NOT_WRAPPED = "level ranks was skipped: {} is not wrapped in DistributedDataParallel"
_OTHER_GROUP = "level ranks was skipped: the process group of {} is not that of all ranks"
_MIXED = "level ranks was skipped: {} has a mixed precision of its own"


@dataclass(frozen=True, slots=True)
class RanksVerdict:
    """What the level found. Not `measured` where there is nothing to compare; `note` says why, if that is news."""

    faults: tuple[Fault, ...] = ()
    measured: bool = False
    note: str = ""


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that DistributedDataParallel wraps; any other module itself."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return inner if isinstance(inner, nn.Module) else model


def hinder(model: nn.Module) -> str | None:
    """Why the ranks are not compared: a sentence, which is empty where there is only one; None where they are."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return ""
    name = type(unwrapped(model)).__name__
    if not isinstance(model, DistributedDataParallel):
        return _NOT_WRAPPED.format(name)
    if dist.get_world_size(model.process_group) != dist.get_world_size():
        return _OTHER_GROUP.format(name)
    return _MIXED.format(name) if getattr(model, "mixed_precision", None) is not None else None


def first_problem(model: nn.Module, problem: str) -> str:
    """Tell the other ranks of a problem (or of none: ""), and hear of theirs: the first one, with its ranks.

    Called by every rank at the same time; where ranks are not compared, it gives back what it was given.
    """
    if hinder(model) is not None:
        return problem
    try:
        with _group("gloo", 4 * TIMEOUT) as talk:
            told: list[str] = _gathered(problem, talk)
    except RuntimeError as error:
        return problem or f"a rank is missing: {_short(error)}"
    first = next(filter(None, told), "")
    return first and f"on {_who(told, first)}: {first}"


def judge_ranks(
    model: nn.Module,
    mode: Mode,
    reference: RunRecord,
    faults: Sequence[Fault],
    step: Callable[[nn.Module], RunRecord],
    *,
    tolerance: float | None = None,
) -> RanksVerdict:
    """Compare the ranks after one checkpointed step through `model`, a DistributedDataParallel.

    Every rank calls it at the same time, and gets the same faults. `reference` is this rank's run of the inner
    module without checkpointing, `faults` are those that the other levels found on this rank. `step` runs the
    checkpointed step on what it is given: a module with the parameters of the inner one and a forward that goes
    through a copy of the wrapper.

    Checks that weights are the same on every rank, that every other level holds on every rank, that the step
    ends, that gradients are equal across ranks to the bit, and that they are what one process gets from the
    joined batch: the mean over ranks of what each rank's own inputs and seed give without wrapper and without
    checkpointing, which is what DistributedDataParallel promises. `tolerance` as in `compare`.

    The copy has the wrapper's options, hooks and class, its own reducer and its own process group: the wrapper
    itself stays unused and intact, also after a step that breaks, and no wait is longer than `TIMEOUT` and the
    time of four more. Costs one step, and while it lasts a second set of gradients.
    """
    hindered = hinder(model)
    if hindered is not None or not isinstance(model, DistributedDataParallel):
        return RanksVerdict(note=hindered or "")
    try:
        with _group("gloo", 4 * TIMEOUT) as talk:
            comparison = _Comparison(model, mode, reference, tuple(faults), talk, tolerance)
            return RanksVerdict(tuple(comparison.faults(step)), measured=True)
    except RuntimeError as error:  # torch raises nothing narrower where a rank is missing
        return RanksVerdict((Fault("ranks", "every rank to take part", _short(error)),), measured=True)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One rank's part in it. What is decided is decided from what all ranks know, so that none goes its own way."""

    wrapper: DistributedDataParallel
    mode: Mode
    reference: RunRecord
    own: tuple[Fault, ...]
    talk: dist.ProcessGroup
    tolerance: float | None

    def faults(self, step: Callable[[nn.Module], RunRecord]) -> list[Fault]:
        unequal = self._unequal_modules()
        if unequal:
            return unequal
        elsewhere, stuck = self._faults_elsewhere()
        if stuck:  # a step that breaks in the bare module breaks in the wrapped one, in the midst of its collectives
            return elsewhere
        run, errors = self._run(step)
        if any(errors):
            return [*elsewhere, *self._broken(errors)]
        unequal = [*self._unequal_gradients(run), *self._unlike_joined(run)]
        if any(fault.level in ("set", "values") for faults in _gathered(self.own, self.talk) for fault in faults):
            unequal = [replace(fault, cause="Gradients are wrong without the wrapper too.") for fault in unequal]
        return [*elsewhere, *unequal]

    def _unequal_modules(self) -> list[Fault]:
        parameters = dict(self.wrapper.module.named_parameters())
        facts = {name: f"{tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in parameters.items()}
        told = _gathered(facts, self.talk)
        if odd := _odd(told):
            names = tuple(n for facts in told for n in facts if any(other.get(n) != facts[n] for other in told))
            return [Fault("ranks", "the same parameters on every rank", f"others on {odd}", _once(names))]
        weights = _gathered({name: digest(p) for name, p in parameters.items()}, self.talk)
        return _different(weights, "the same weights on every rank", "parameters")

    def _faults_elsewhere(self) -> tuple[list[Fault], bool]:
        """What other levels found on other ranks alone, and whether any rank's own step breaks."""
        told: list[tuple[Fault, ...]] = _gathered(self.own, self.talk)
        levels = [{fault.level for fault in faults} for faults in told]
        found = []
        for rank, faults in enumerate(told):
            for fault in faults:
                holders = [other for other, failed in enumerate(levels) if fault.level in failed]
                if len(holders) < len(told) and holders[0] == rank:
                    seen = f"a fault on {_who(levels, fault.level)}: {str(fault).removesuffix('.')}"
                    found.append(Fault("ranks", f"level {fault.level} to hold on every rank", seen, fault.subjects))
        return found, any("run" in failed for failed in levels)

    def _run(self, step: Callable[[nn.Module], RunRecord]) -> tuple[RunRecord, list[str]]:
        """This rank's step, and the errors of all ranks."""
        backend, module = dist.get_backend(self.wrapper.process_group), self.wrapper.module
        # a wrapper that keeps gradients in its buckets takes those that it finds when it is made
        with _group(backend, TIMEOUT) as group, gradients_aside(module):
            try:
                copy = _copy(self.wrapper, group)
            except Exception as error:  # whatever it is, the other ranks have to hear of it
                return self.reference, _gathered(f"wrapping it again raised {_short(error)}", self.talk)
            run = step(_Through(module, copy))
            # The wrapper must not be the last to hold the group: it would end the group's threads while it holds
            # the interpreter's lock, and they may be waiting for that lock (seen with gloo, torch 2.13).
            del copy
            gc.collect()
            if not run.error:  # the group has to live until the others are through as well
                return run, _gathered("", self.talk)
        # whoever breaks leaves the group first, so that nobody waits there for what will not come
        return run, _gathered(_short(run.error), self.talk)

    def _broken(self, errors: Sequence[str]) -> list[Fault]:
        return [
            Fault("ranks", "a step that ends", f"on {_who(errors, text)}: {text}", cause=self._cause(text, errors))
            for text in _once(filter(None, errors))
        ]

    def _cause(self, error: str, errors: Sequence[str]) -> str:
        if not all(errors) and any(word in error for word in _ALONE):
            return "The other ranks' steps end: they do not add up the same gradients."
        if self.mode != "reentrant" or _TWICE not in error:
            return ""
        if self.wrapper.find_unused_parameters:
            return "Reentrant checkpointing hides blocks from find_unused_parameters, which takes them for unused."
        return "In reentrant mode each block that uses a parameter reports its gradient, so that none may be shared."

    def _unequal_gradients(self, run: RunRecord) -> list[Fault]:
        digests = {name: None if g is None else digest(g) for name, g in run.gradients.items()}
        return _different(_gathered(digests, self.talk), "the same gradients on every rank", "gradients")

    def _unlike_joined(self, run: RunRecord) -> list[Fault]:
        joined = replace(self.reference, gradients=self._joined(), input_gradients={}, error=None)
        alone = replace(run, input_gradients={})
        verdict = compare(joined, alone, floors=noise_floors(joined), tolerance=self.tolerance)
        missing: dict[str, str] = dict.fromkeys(verdict.lost, "none or only zeros")
        missing |= dict.fromkeys(verdict.gained, "one that no rank computes")
        wrong = {name: (verdict.errors or {})[name] for name in verdict.wrong}
        return _joined_faults(_gathered((missing, wrong), self.talk), len(run.gradients))

    def _joined(self) -> dict[str, Tensor | None]:
        """The mean over ranks of every gradient of the reference; None where no rank has it, zero where one lacks it.

        All ranks add up the same tensors in the same order, whatever gradients they have.
        """
        own = self.reference.gradients
        present = _gathered({name: gradient is not None for name, gradient in own.items()}, self.talk)
        joined: dict[str, Tensor | None] = {}
        for name, parameter in self.wrapper.module.named_parameters():
            if name not in own or not any(ranks.get(name) for ranks in present):
                joined |= {name: None} if name in own else {}
                continue
            total = torch.zeros(parameter.shape, dtype=torch.complex128 if parameter.is_complex() else torch.float64)
            if (gradient := own[name]) is not None:
                total += gradient.to_dense()
            dist.all_reduce(total, group=self.talk)
            joined[name] = (total / len(present)).to(parameter.dtype)
        return joined


class _Through(nn.Module):
    """A module as it is, but for its forward, which goes through a wrapper of it."""

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
    """A second wrapper of the same module with the same options, class and hooks, in another process group."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    wanted: dict[str, Any] = {
        "init_sync": False,
        "bucket_cap_mb": None if wrapper.bucket_bytes_cap_default else wrapper.bucket_bytes_cap / 2**20,
        **{name: getattr(wrapper, name, None) for name in _OPTIONS},
    }
    if "forward_sync_buffers" not in known:
        wanted["broadcast_buffers"] = wrapper.broadcast_buffers
    options = {name: value for name, value in wanted.items() if name in known and value is not None}
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
    """A process group of all ranks, with a limit to every wait, for the time of the `with`."""
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=seconds))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _gathered(value: Any, group: dist.ProcessGroup) -> list[Any]:
    """What every rank passed, by rank."""
    told = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, value, group=group)
    return told


def _different(told: Sequence[Mapping[str, str | None]], expected: str, what: str) -> list[Fault]:
    """One fault for each group of ranks that have something else than the first under the same names."""
    seen: dict[str, list[str]] = {}
    for name in told[0]:
        values = [ranks.get(name) for ranks in told]
        if odd := _odd(values):
            none = [value is None for value in values]
            words = f"none on {_who(none, True)}" if any(none) else f"other values on {odd} than on rank 0"
            seen.setdefault(words, []).append(name)
    return [
        Fault("ranks", expected, f"{words} ({len(names)} of {len(told[0])} {what})", tuple(names))
        for words, names in seen.items()
    ]


def _joined_faults(told: Sequence[tuple[Mapping[str, str], Mapping[str, float]]], total: int) -> list[Fault]:
    expected = "the mean of what each rank computes alone"
    faults = []
    for words in _once(word for missing, _ in told for word in missing.values()):
        lacking = [[name for name, word in missing.items() if word == words] for missing, _ in told]
        names = _once(name for rank in lacking for name in rank)
        seen = f"{words} on {_which(lacking)} ({len(names)} of {total} gradients)"
        faults.append(Fault("ranks", expected, seen, names))
    worst: dict[str, float] = {}
    for _, wrong in told:
        for name, error in wrong.items():
            worst[name] = max(worst.get(name, 0.0), weight(error))
    if worst:
        names = tuple(sorted(worst, key=worst.__getitem__, reverse=True))
        where = _which([wrong for _, wrong in told])
        seen = f"a relative error up to {worst[names[0]]:.2g} on {where} ({len(names)} of {total} gradients)"
        faults.append(Fault("ranks", expected, seen, names))
    return faults


def _odd(values: Sequence[object]) -> str:
    """The ranks with another value than the first; empty where all are equal."""
    odd = [value != values[0] for value in values]
    return _which(odd) if any(odd) else ""


def _who(told: Sequence[Any], wanted: object) -> str:
    """The ranks that told this, or that have it among what they told."""
    return _which([one == wanted or (isinstance(one, set) and wanted in one) for one in told])


def _which(flags: Sequence[object]) -> str:
    return ranks_in_words([rank for rank, flag in enumerate(flags) if flag], len(flags))


def _once(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _short(error: object) -> str:
    """The first sentence of an error, in one line, without the place in torch's source that it begins with."""
    text = re.sub(r"\[/\S+\] ", "", " ".join(str(error).split()))
    return text.partition(". ")[0].removesuffix(".")[:_LONGEST]
