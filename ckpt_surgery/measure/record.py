"""What one instrumented step showed: the run record, on which every comparison stands. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.measure.block_entries import EndlessBackward, Entries
from ckpt_surgery.measure.observed_calls import CallFacts
from ckpt_surgery.measure.results import Mode, Timeline
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.text import one_line

_LONG = 160  # characters; torch likes to go on after it has said what is wrong
LITTLE = 0.01
"""The share of the bytes that a forward keeps which nobody looks for."""
_NOTHING = Timeline((), 0)


class StepPart(StrEnum):
    """The parts of a step."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    GENERATE = "generate"
    WRAP = "wrapping it again"


@dataclass(frozen=True, slots=True)
class StepError:
    """What ended a step: the part, the class of the exception, and its message on one line.

    `refusal` tells that a surgery raised it, rather than get a call wrong, and `endless` that the backward was stopped
    because it would not have ended.
    """

    part: StepPart
    exception: str
    message: str
    refusal: bool = False
    endless: bool = False

    def __str__(self) -> str:
        text = self.message.partition(". ")[0] if len(self.message) > _LONG else self.message
        return f"{self.part} raised {self.exception}: {text.rstrip('.')}"


def step_error(part: StepPart, error: Exception) -> StepError:
    """What is kept of an exception that a step raised."""
    refusal, endless = isinstance(error, SurgeryError), isinstance(error, EndlessBackward)
    return StepError(part, type(error).__name__, one_line(error), refusal, endless)


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """What one step showed. Tensors lie on the CPU, in the dtype that the run had, and share no memory with it.

    `loss` is NaN where the forward failed. `gradients` holds every parameter that requires gradient, by name
    and in its own shape; None where the backward never reached it. `input_gradients` does so for the inputs
    that came with `requires_grad`. `entries` has one count per block. `buffers` are their values after the step, and
    those of parameters that the step itself wrote into.
    `kept_bytes` are the bytes that the forward left alive for the backward (see `meter`), `best_kept_bytes` those
    that would be left if every block kept only what it was given and returned, `held_bytes` what each block made and
    did not return, of those kept. `policy_bytes` are those that a surgery was told to keep of each block,
    `kept_results` what they are, and `policy_flops` the work that its recomputes are spared for it.
    `recompute_bytes` are those alive whenever the recompute of a block began, and
    `left_bytes` those after the backward, both without the gradients of parameters and inputs. FLOPs are counted for
    forward and backward; `block_flops` are the part of the forward that lies in blocks. `cache` maps inputs that are
    caches to their size before the step, after the forward and after the backward. `calls` tells how the blocks
    were called, `leaking_blocks` which of them created tensors that were used outside without being returned; like
    the best bytes and the block FLOPs, both are known only of runs without checkpointing. `rng_mismatches` are blocks
    whose recompute began with torch's generators in another state than their forward, `rng_moved` tells whether the
    backward left those generators, or Python's or NumPy's, in another state. `generated` are the token ids, shape
    (batch, length), where asked for. `error` is what ended the step early; what was not reached then is missing.
    """

    checkpointing: Mode | None
    seed: int
    loss: float
    gradients: Mapping[str, Tensor | None]
    input_gradients: Mapping[str, Tensor | None]
    entries: Mapping[str, Entries]
    buffers: Mapping[str, Tensor]
    kept_bytes: int
    best_kept_bytes: int = 0
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    policy_bytes: Mapping[str, int] = field(default_factory=dict)
    policy_flops: int = 0
    kept_results: tuple[KeptSummary, ...] = ()
    recompute_bytes: tuple[int, ...] = ()
    left_bytes: int = 0
    forward_flops: int = 0
    backward_flops: int = 0
    block_flops: int = 0
    timeline: Timeline = _NOTHING
    cache: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    calls: Mapping[str, CallFacts] = field(default_factory=dict)
    leaking_blocks: frozenset[str] = frozenset()
    rng_mismatches: tuple[str, ...] = ()
    rng_moved: bool = False
    generated: Tensor | None = None
    error: StepError | None = None

    @property
    def refused(self) -> str | None:
        """The sentence with which a surgery refused a call of the step; None where none did."""
        return self.error.message if self.error and self.error.refusal else None
