"""The run record: what one instrumented step showed, on which every comparison stands. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Size, Tensor, finfo, nn, strided

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.measure.block_entries import EndlessBackward, Entries
from ckpt_surgery.measure.contents import Contents
from ckpt_surgery.measure.meter import FlopCount
from ckpt_surgery.measure.observed_calls import CallFacts
from ckpt_surgery.measure.results import MODES, Mode, Timeline
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.text import one_line

_LONG = 160  # characters; torch tends to go on after it has said what is wrong
NEGLIGIBLE = 0.01
"""The share of the bytes that a forward keeps up to which a difference in memory is ignored."""
_NO_POINTS = Timeline((), 0)


def input_name(name: str) -> str:
    """Return the name of a model input in faults; no parameter has such a name."""
    return f"input {name}"


class StepPart(StrEnum):
    """The parts of a step."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    WRAP = "wrapping it again"


@dataclass(frozen=True, slots=True)
class StepError:
    """The error that ended a step: the part, the class of the exception, and its message on one line.

    `refusal` says that a surgery raised it rather than get a call wrong, `endless` that the backward was stopped
    because it would not have ended.
    """

    part: StepPart
    exception: str
    message: str
    refusal: bool = False
    endless: bool = False

    @classmethod
    def of(cls, part: StepPart, error: Exception) -> StepError:
        """Return the record of an exception that a step raised."""
        refusal, endless = isinstance(error, SurgeryError), isinstance(error, EndlessBackward)
        return cls(part, type(error).__name__, one_line(error), refusal, endless)

    def __str__(self) -> str:
        text = self.message.partition(". ")[0] if len(self.message) > _LONG else self.message
        return f"{self.part} raised {self.exception}: {text.rstrip('.')}"


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The bytes that were alive in a step (see `meter`), none of them of gradients of parameters and inputs.

    Attributes:
        kept: what the forward left alive for the backward.
        best: what would be left if every block kept only what it was given and returned; known only of runs without
            checkpointing.
        held: of the bytes kept, those that each block made and did not return.
        kept_by_policy: what the option `save` of a surgery keeps of each block; `kept_results` says what that is.
        recomputes: what was alive whenever the recompute of a block began.
        left: what was alive after the backward.
        parts: the same for each part of a block that has submodules itself; known only of runs without checkpointing.
    """

    kept: int = 0
    best: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    kept_by_policy: Mapping[str, int] = field(default_factory=dict)
    kept_results: tuple[KeptSummary, ...] = ()
    recomputes: tuple[int, ...] = ()
    left: int = 0
    timeline: Timeline = _NO_POINTS
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """The record of one step. Tensors are on the CPU, in the run's dtype, and share no memory with it.

    Attributes:
        loss: NaN if the forward failed.
        gradients: of every parameter that requires gradient, by name and in its own shape; None if the backward never
            reached it.
        input_gradients: the same for the inputs that came with `requires_grad`.
        buffers: the values after the step, also of parameters that the step itself wrote to.
        buffers_before: the contents of buffers after the forward; `outputs` are those of what the forward returned.
        unread: the buffers whose values nothing depends on.
        entries: one count per block.
        calls: how the blocks were called, in runs without checkpointing.
        given_shapes: the shapes of the tensors that the first call of each block was given, by parameter.
        without_gradient: the block that was called first, if no tensor that it was given requires gradient.
        switched_off: the layers whose own flag says that they are not checkpointed.
        own_checkpoint: the place of a checkpoint that ran although checkpointing was switched off.
        cache: by input that is a cache, its size before the step, after the forward and after the backward.
        written: the inputs, attributes of modules and global variables whose tensors the backward wrote to.
        changed_numbers: the attributes of modules that are numbers, and that the backward changed.
        drawn_from: the attributes of modules that are generators, and that the backward drew from.
        functions: the subclasses of autograd.Function in the graph of the forward that are neither torch's nor ours.
        differing_states: the state that differed between forward and recompute, by module (see `CallStates`).
        reentrant: whether the forward began with a reentrant call of torch's checkpoint function.
        packs: whether hooks that are neither torch's nor ours pack what the forward saves, as offloading does.
        modes: the modes in which blocks may have been recomputed.
        rng_mismatches: the blocks whose recompute began with torch's generators in another state than their forward.
        rng_moved: whether the backward left torch's, Python's or NumPy's generators in another state.
        error: the error that ended the step early; what it did not reach is missing here.
    """

    loss: float
    gradients: Mapping[str, Tensor | None] = field(default_factory=dict)
    input_gradients: Mapping[str, Tensor | None] = field(default_factory=dict)
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    buffers_before: Mapping[str, Contents] = field(default_factory=dict)
    outputs: Mapping[str, Contents] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    entries: Mapping[str, Entries] = field(default_factory=dict)
    calls: Mapping[str, CallFacts] = field(default_factory=dict)
    given_shapes: Mapping[str, Mapping[str, Size]] = field(default_factory=dict)
    without_gradient: tuple[str, ...] = ()
    switched_off: tuple[str, ...] = ()
    own_checkpoint: str = ""
    cache: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    changed_numbers: tuple[str, ...] = ()
    drawn_from: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    differing_states: Mapping[str, str] = field(default_factory=dict)
    reentrant: bool = False
    packs: bool = False
    modes: frozenset[Mode] = frozenset(MODES)
    memory: MemoryRecord = field(default_factory=MemoryRecord)
    flops: FlopCount = field(default_factory=FlopCount)
    rng_mismatches: tuple[str, ...] = ()
    rng_moved: bool = False
    error: StepError | None = None

    @property
    def all_gradients(self) -> dict[str, Tensor | None]:
        """The gradients of the parameters, and those of the inputs under `input <name>`."""
        return {**self.gradients, **{input_name(name): gradient for name, gradient in self.input_gradients.items()}}

    @property
    def root_of_eps(self) -> float:
        """The root of the dtype's eps: sums in another order differ by less, most faults by more."""
        dtypes = (gradient.dtype for gradient in self.gradients.values() if gradient is not None)
        return float(max((finfo(dtype).eps for dtype in dtypes), default=0.0) ** 0.5)

    @property
    def refused(self) -> str | None:
        """The sentence with which a surgery refused a call of the step; None if none did."""
        return self.error.message if self.error and self.error.refusal else None

    @property
    def only_packs(self) -> bool:
        """Whether the model's own hooks pack what a forward saves, while its blocks are not recomputed."""
        return self.packs and not any(entries.backward or entries.parts for entries in self.entries.values())

    def put_gradients(self, model: nn.Module) -> None:
        """Overwrite the gradients that the model's parameters have by those of this step."""
        for name, parameter in model.named_parameters():
            gradient = self.gradients.get(name)
            if gradient is not None and parameter.grad is not None and parameter.grad.layout == strided:
                parameter.grad.copy_(gradient)

    def wanted_recomputes(self, block: str, unknown: int = 1) -> int:
        """Return how often a block should be recomputed; `unknown` if this run did not call it."""
        return self.calls[block].backward_calls if block in self.calls else unknown
