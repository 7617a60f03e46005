"""Check one call of a block: compare what its recompute computes with what its forward computed.

The tensors that decide the gradients are compared: those that operators save, in their order. Only a few sums of each
are held.

Kernels that add up in another order each time give other bits for the same values. So if bits differ, the block runs a
few more times: differences between recomputes are noise, and a difference far above them is not.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError

from ckpt_surgery.errors import SurgeryError, SurgeryWarning
from ckpt_surgery.runtime.self_check.fingerprints import Fingerprint, magnitude
from ckpt_surgery.runtime.self_check.routing import RoutingRecord, has_router, rerouted
from ckpt_surgery.runtime.self_check.schedule import CheckSchedule
from ckpt_surgery.runtime.tools.error_policy import ErrorPolicy
from ckpt_surgery.runtime.tools.rng import TorchStates, torch_states, torch_states_kept
from ckpt_surgery.runtime.tools.tensors import is_parameter, is_plain, strides_of_view, unseen, version
from ckpt_surgery.text import one_line, some
from ckpt_surgery.torch_names import saved_tensors_hooks_now, skip_frames

_NOISE = 8.0
"""How far off a tensor may be, relative to the largest difference between two recomputes."""
_RECENT = 4
"""How many tensors are held while a block runs, so that none is summed again soon after."""
MORE_RUNS = 3, 6
"""How often a block runs again if bits differ, and how often more before it is refused: noise may be low by chance."""
_MOST_NOISE = 0.05
"""The share of a tensor's magnitude above which a difference is noise in no dtype."""
_MOST_ROUNDINGS = 1000.0
"""The same limit in units of the dtype's rounding."""

_RANDOM_STATES = (torch.uint64, torch.int64)


@dataclass(slots=True)
class _Trace:
    """One run of a block: the fingerprints of the tensors it saved, in order, and the indices that it chose."""

    prints: list[Fingerprint | None] = field(default_factory=list)
    recent: deque[tuple[Tensor, Any, Fingerprint | None]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """The tensors seen last, each with its key from `_elements` and its fingerprint: operators often save the same one
    as those before them. They are held so that their memory is not reused meanwhile."""
    choices: list[Tensor] = field(default_factory=list)
    parameters: dict[int, int] = field(default_factory=dict)  # the block's, by their ids: numbers
    expected: Sequence[Fingerprint | None] = ()
    """The fingerprints of the run that this one is compared with."""


@dataclass(slots=True)
class CloseTrace(_Trace):
    """A trace that also has the magnitude of each tensor, and where it was saved; slow, for errors only."""

    magnitudes: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


class SelfCheck:
    """A comparison of one call of `block` with its recompute. `place` names the block in messages.

    If the two differ, that is raised or reported, as `error_policy` says. What is learned about the block is noted on
    its `schedule`.
    """

    __slots__ = ("_attributes", "_block", "_error_policy", "_forward_trace", "_note_now", "_place", "_schedule")

    def __init__(self, place: str, block: nn.Module, error_policy: ErrorPolicy, schedule: CheckSchedule) -> None:
        self._error_policy = error_policy
        self._place = place
        self._block = block
        self._schedule = schedule
        self._note_now: Callable[[Tensor], None] | None = None  # set while saved tensors are seen
        self._forward_trace = _Trace()
        self._attributes: Mapping[str, Any] = {}  # as the forward ended

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Note what operators save in the forward inside, and which experts it chooses."""
        with self._choices(self._forward_trace), self._saved_tensors(partial(self._note, self._forward_trace)):
            yield
        self._forward_trace.recent.clear()
        self._attributes = _plain_attributes(self._block)

    def note_inputs(self, tensors: Iterable[Tensor]) -> None:
        """Note the inputs of an operator whose result is kept: in the recompute its result says nothing about them."""
        if (note := self._note_now) is not None:
            for tensor in tensors:
                note(tensor.detach() if is_plain(tensor) else tensor)

    def recompute(self, run: Callable[[], None]) -> None:
        """Run a recompute and compare it with the forward; `run` may be called several times.

        Raises SurgeryError if the recompute gave a different result than the forward.
        """
        trace = _Trace(expected=self._forward_trace.prints)
        devices = {each.bits.device for each in self._forward_trace.prints if each is not None}
        look = partial(self._look_closely, run, torch_states(device for device in devices if device.type != "cpu"))

        def run_noting_choices() -> None:
            with self._choices(trace):
                run()

        judge = partial(self._judge, trace, look)
        self._run_and_judge(run_noting_choices, lambda tensor: self._note(trace, tensor), judge)

    def _run_and_judge(
        self, run: Callable[[], None], note: Callable[[Tensor], None], judge: Callable[..., None]
    ) -> None:
        """Run a recompute and pass `note` what it saves; then `judge` it, as `complete` if it ran to its end."""
        try:
            with self._saved_tensors(note):
                run()
        except (SurgeryError, torch.OutOfMemoryError):
            raise
        except Exception:  # torch ends a recompute by one as soon as it has what it needs
            with self._error_policy:
                judge()
            raise
        with self._error_policy:
            judge(complete=True)

    def _note(self, trace: _Trace, tensor: Tensor) -> None:
        with self._error_policy:
            trace.prints.append(self._print_of(trace, tensor))

    def _print_of(self, trace: _Trace, tensor: Tensor) -> Fingerprint | None:
        # versions tell whether a parameter has changed, so only its identity counts; unset memory differs in each run
        if is_parameter(tensor):
            parameter = id(tensor if tensor._base is None else tensor._base)
            if parameter not in trace.parameters:
                # a part that is sharded by itself gathers new parameters when it is entered
                trace.parameters |= {id(held): number for number, held in enumerate(self._block.parameters(), 1)}
            number = trace.parameters.get(parameter, 0)  # 0 for others, such as those that the run has gathered
            return Fingerprint.placeholder(tensor, number, strides_of_view(tensor))
        if may_be_unset(tensor, self._block):
            return Fingerprint.placeholder(tensor)
        elements = _elements(tensor)
        seen = next((made for held, key, made in trace.recent if key == elements == _elements(held)), None)
        if seen is not None:
            return seen
        index = len(trace.prints)
        fingerprint = Fingerprint.of(tensor, trace.expected[index] if index < len(trace.expected) else None)
        if elements is not None:
            trace.recent.append((tensor.detach(), elements, fingerprint))
        return fingerprint

    def _choices(self, trace: _Trace) -> AbstractContextManager[Any]:
        return RoutingRecord(trace.choices) if has_router(self._block) else nullcontext()

    @contextmanager
    def _saved_tensors(self, note: Callable[[Tensor], None], *, passed_on: bool = True) -> Iterator[None]:
        """Pass `note` each tensor that operators save inside, and with `passed_on` also torch's checkpointing."""
        hooks: Any = saved_tensors_hooks_now(True)
        if hooks is None:
            yield
            return
        pack, unpack = hooks if passed_on else (Tensor.detach, Tensor.detach)

        def noting(tensor: Tensor) -> Any:
            note(tensor)
            return pack(tensor)

        def unpacking(packed: Any) -> Any:
            try:
                return unpack(packed)
            except CheckpointError as error:
                raise SurgeryError(
                    f"{self._place} cannot be recomputed: torch's checkpointing ended its backward with "
                    f'"{one_line(error)}"; leave the block out'
                ) from error

        skip_frames(noting.__code__)  # compiled parts of a block would be compiled together with the check
        outer, self._note_now = self._note_now, note
        try:
            with saved_tensors_hooks(noting, unpacking):
                yield
        finally:
            self._note_now = outer

    def _look_closely(self, run: Callable[[], None], generators: TorchStates) -> CloseTrace:
        """Run the block again from the same state of torch's generators, and pass nothing on."""
        trace = CloseTrace(expected=self._forward_trace.prints)
        inside: list[str] = []

        def note(tensor: Tensor) -> None:
            self._note(trace, tensor)
            trace.magnitudes.append(magnitude(tensor))
            trace.names.append(inside[-1] if inside else "")

        def leave(*_: Any) -> None:
            del inside[-1:]

        with ExitStack() as stack:
            for name, module in self._block.named_modules():
                if isinstance(module, torch.jit.ScriptModule):  # has no hooks of Python
                    continue
                enter = partial(lambda name, *_: inside.append(name), name)
                stack.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
                stack.callback(module.register_forward_hook(leave, always_call=True).remove)
            stack.enter_context(torch_states_kept(generators))
            stack.enter_context(self._saved_tensors(note, passed_on=False))
            with suppress(Exception):  # a recompute that cannot run once more is compared as far as it came
                run()
        return trace

    def _judge(self, again: _Trace, look: Callable[[], CloseTrace], *, complete: bool = False) -> None:
        """Raise SurgeryError if a recompute, `complete` or as far as it came, differs by more than noise."""
        first = self._forward_trace.prints
        if self._error_policy.reported:
            return
        suspected, self._schedule.suspected = self._schedule.suspected, False
        if equal(first, again.prints) and not (complete and len(again.prints) < len(first)):
            if suspected:
                self._explain(again, look)
            return
        routed = rerouted(self._forward_trace.choices, again.choices)
        more: list[CloseTrace] = []
        for runs in MORE_RUNS:
            more += [look() for _ in range(runs)]
            repeatable = all(equal(again.prints, trace.prints) for trace in more)
            may_be_noise = routed is None and not repeatable and has_noise(self._block)
            if may_be_noise and _is_noise(first, again.prints, more):
                self._schedule.noisy = True
                return
            if routed is not None or repeatable:
                break
        now = _plain_attributes(self._block)
        changed = [f"its {name}" for name, value in self._attributes.items() if now.get(name) != value]
        raise SurgeryError(
            f"recomputing {self._place} gave a different result than its forward: "
            f"{_difference(first, again.prints, more[0])}; {cause(routed, changed, repeatable=repeatable)}"
        )

    def _explain(self, again: _Trace, look: Callable[[], CloseTrace]) -> None:
        """Find out why bits differed in the step before and not in this one: by noise, or else warn."""
        if any(not equal(again.prints, look().prints) for _ in range(MORE_RUNS[0])):
            self._schedule.noisy = True
            return
        warnings.warn(
            f"recomputing {self._place} gave other bits than its forward in the step before, and none in this one: "
            "either one of its kernels now and then adds up in another order, which is rounding, or something changed "
            "between the forward and the backward of that step",
            SurgeryWarning,
            stacklevel=2,
        )


def on_accelerator(block: nn.Module) -> bool:
    """Tell whether a block is on another device than a CPU."""
    parameter = next(block.parameters(), None)
    return parameter is not None and parameter.device.type != "cpu"


def has_noise(block: nn.Module) -> bool:
    """Tell whether kernels may add up in another order each time; a single CPU thread never does."""
    return on_accelerator(block) or torch.get_num_threads() > 1


def may_be_unset(tensor: Tensor, block: nn.Module) -> bool:
    """Tell whether a tensor looks like one that kernels save uninitialised.

    cuDNN and oneDNN reserve one-dimensional byte tensors for themselves. On an accelerator, attention saves the state
    of random numbers, one or two integers, even if it drops nothing: as uint64 (flash attention), or as int64, even on
    the CPU (memory-efficient attention, the package flash_attn).

    What is computed from them is compared.
    """
    if tensor.dtype in _RANDOM_STATES:
        return tensor.dim() <= 1 and tensor.numel() in (1, 2) and on_accelerator(block)
    return tensor.dtype is torch.uint8 and tensor.dim() == 1


def _elements(tensor: Tensor) -> Any:
    """Return a key that is equal for tensors with the same elements while both are alive; None if there is none."""
    if type(tensor) is not Tensor or tensor.layout != torch.strided:
        return None
    bits = tensor.data_ptr(), tensor.dtype, tensor.is_conj(), tensor.is_neg(), version(tensor)
    return tensor.shape, tensor.stride(), bits


def equal(ours: Sequence[Fingerprint | None], theirs: Sequence[Fingerprint | None]) -> bool:
    """Tell whether two runs gave the same bits, as far as both came. Waits once for each device."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None and a is not b]
    if any(
        (a.shape, a.strides, a.dtype, a.bits.device) != (b.shape, b.strides, b.dtype, b.bits.device) for a, b in pairs
    ):
        return False
    with unseen():
        return all(
            torch.equal(
                torch.stack([a.bits for a, _ in pairs if a.bits.device == device]),
                torch.stack([b.bits for _, b in pairs if b.bits.device == device]),
            )
            for device in {a.bits.device for a, _ in pairs}
        )


def _is_noise(
    first: Sequence[Fingerprint | None], again: Sequence[Fingerprint | None], more: Sequence[CloseTrace]
) -> bool:
    """Tell whether forward and recompute differ by no more than recomputes differ from one another."""
    if any(len(trace.prints) < len(again) for trace in more):
        return False
    sizes = more[0].magnitudes
    noise = max(_share(b, c, size) for trace in more for b, c, size in zip(again, trace.prints, sizes, strict=False))
    for a, b, size in zip(first, again, sizes, strict=False):
        if not equal([a], [b]):
            if a is None or not (a.dtype.is_floating_point or a.dtype.is_complex):
                return False
            most = min(_MOST_NOISE, _MOST_ROUNDINGS * torch.finfo(a.dtype).eps)
            if _share(a, b, size) > min(_NOISE * noise, most):
                return False
    return True


def _share(a: Fingerprint | None, b: Fingerprint | None, size: float) -> float:
    """Return the distance of two tensors as a share of their magnitude; infinite if that cannot be said."""
    if a is None or b is None or a.values is None or b.values is None or a.shape != b.shape:
        return 0.0 if equal([a], [b]) else float("inf")
    apart = abs(float(a.values) - float(b.values))
    return apart / size if size > 0 and apart == apart else float("inf")


def _difference(first: Sequence[Fingerprint | None], again: Sequence[Fingerprint | None], third: CloseTrace) -> str:
    pairs = enumerate(zip(first, again, strict=False))
    differing = ((i, (a, b)) for i, (a, b) in pairs if not equal([a], [b]))
    index, (a, b) = next(differing, (len(again), (None, None)))
    name = third.names[index] if index < len(third.names) else ""
    where = f" in {name}" if name else ""
    if a is None or b is None:
        return f"{len(again)} tensors of the {len(first)} that the forward saved"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"a tensor of {b.form}{where} in place of one of {a.form}"
    size = third.magnitudes[index] if index < len(third.magnitudes) else 0.0
    share = _share(a, b, size)
    apart = f"is off by about {share:.1g} of its magnitude" if 0 < share < float("inf") else "has other values"
    return f"a tensor of {a.form}{where} {apart}"


def _plain_attributes(block: nn.Module) -> Mapping[str, Any]:
    """Return attributes in a block that are numbers, names or lists of names; `training` is restored anyway."""
    attributes: dict[str, Any] = {}
    for path, module in block.named_modules():
        for name, value in vars(module).items():
            of_names = type(value) in (list, tuple) and all(type(each) is str for each in value)
            if name != "training" and (of_names or type(value) in (bool, int, float, str)):
                attributes[f"{path}.{name}" if path else name] = tuple(value) if of_names else value
    return attributes


def cause(routed: tuple[int, int] | None, changed: Sequence[str], *, repeatable: bool) -> str:
    """Say why a recompute differs: by its routing, by changed attributes, or for neither reason."""
    if routed is not None:
        return (
            f"the recompute routed {routed[0]} of {routed[1]} tokens to other experts: keep the precision and the "
            "kernels before the router as they were in the forward, or leave the block out"
        )
    if repeatable:
        named = f", such as {some(changed)}" if changed else ""
        return (
            f"it depends on something that has changed since the forward{named}: keep that as it was until the "
            "backward, pass it as an argument, or leave the block out"
        )
    return "it makes something else each time: pass what it draws or reads as an argument, or leave the block out"
