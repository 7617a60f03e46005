"""What a DistributedDataParallel run of a model needs, as data, and the words for it.

What leads to a need is found out in `ready`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from ckpt_surgery.text import text_table

_SHOWN = 3  # names in a line of the table


class DDPOption(Enum):
    """A setting that a run needs, as users write it."""

    FIND_UNUSED = "find_unused_parameters=True"
    NON_REENTRANT = "use_reentrant=False"
    NO_STATIC_GRAPH = "static_graph=False"


class NeedReason(Enum):
    """Why a run needs an option."""

    OPTIONAL_INPUT = auto()
    """A step may lack the input that the modules take."""
    LAYER_DROP = auto()
    """LayerDrop may leave the blocks out."""
    ROUTED_EXPERTS = auto()
    """An expert may be given no token."""
    NEVER_USED = auto()
    """The parameters got no gradient in any batch."""
    USED_AT_TIMES = auto()
    """The parameters got a gradient in some batches only."""
    STEPS_DIFFER = auto()
    """Steps may use different parameters, and a static graph is fixed in the first one."""
    READY_TWICE = auto()
    """Several blocks, or calls of a block, use the parameters."""
    SEARCH_BLIND = auto()
    """The search for unused parameters does not see into reentrant checkpoints."""
    INNER_BACKWARD = auto()
    """The parameters get their gradients from a backward inside the backward."""
    REENTRANT_NOW = auto()
    """The modules checkpoint in reentrant mode now."""


_LEFT_WAITING = (
    "DistributedDataParallel then waits for them: the step ends with each rank's own gradients, and only the next "
    "forward raises, or a rank hangs."
)

_OPTIONS: dict[NeedReason, DDPOption] = {
    NeedReason.OPTIONAL_INPUT: DDPOption.FIND_UNUSED,
    NeedReason.LAYER_DROP: DDPOption.FIND_UNUSED,
    NeedReason.ROUTED_EXPERTS: DDPOption.FIND_UNUSED,
    NeedReason.NEVER_USED: DDPOption.FIND_UNUSED,
    NeedReason.USED_AT_TIMES: DDPOption.FIND_UNUSED,
    NeedReason.STEPS_DIFFER: DDPOption.NO_STATIC_GRAPH,
    NeedReason.READY_TWICE: DDPOption.NON_REENTRANT,
    NeedReason.SEARCH_BLIND: DDPOption.NON_REENTRANT,
    NeedReason.INNER_BACKWARD: DDPOption.NON_REENTRANT,
    NeedReason.REENTRANT_NOW: DDPOption.NON_REENTRANT,
}

_SENTENCES: dict[NeedReason, str] = {
    NeedReason.OPTIONAL_INPUT: (
        f"A step without the input that these take may leave them without gradient. {_LEFT_WAITING}"
    ),
    NeedReason.LAYER_DROP: (
        "LayerDrop may leave out any of these blocks, or elements of these lists, in a step. Their parameters then "
        "get no gradient."
    ),
    NeedReason.ROUTED_EXPERTS: (
        "An expert of these lists that is given no token in a step may get no gradient. Batches cannot show that "
        "this never happens."
    ),
    NeedReason.NEVER_USED: (
        "These got no gradient in any batch given. If no batch of the run gives them one, freeze them with "
        f"requires_grad_(False); otherwise let every step search for them. {_LEFT_WAITING}"
    ),
    NeedReason.USED_AT_TIMES: f"These got a gradient in some of the batches only. {_LEFT_WAITING}",
    NeedReason.STEPS_DIFFER: (
        "static_graph=True does not help: DistributedDataParallel notes in step 0 which parameters are used, and "
        "never looks again. A later step that uses fewer ends with each rank's own gradients, and only the next "
        "forward raises."
    ),
    NeedReason.READY_TWICE: (
        "Several blocks, or calls of a block, use these: with reentrant checkpointing the recompute of each marks "
        'them ready. DistributedDataParallel raises "Expected to mark a variable ready only once" or, if all else is '
        "ready by then, adds the later part to gradients that are averaged already, without an error."
    ),
    NeedReason.SEARCH_BLIND: (
        "find_unused_parameters=True and reentrant checkpointing never go together: the search does not see into "
        "checkpointed blocks and marks their parameters ready as unused; the backward marks them again, which raises."
    ),
    NeedReason.INNER_BACKWARD: (
        "These got their gradients from a backward inside the backward, as of reversible blocks or checkpoint(..., "
        "use_reentrant=True) in a forward. The search marks them ready as unused, and the backward marks them again, "
        "which raises: checkpoint with use_reentrant=False, or freeze what gets no gradient and leave the search out."
    ),
    NeedReason.REENTRANT_NOW: (
        "These checkpoint with use_reentrant=True now: call wrap_blocks(model), or "
        'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}).'
    ),
}


@dataclass(frozen=True, slots=True)
class Need:
    """A reason to set an option, and the names of the parameters or modules it is about; none for the whole model."""

    reason: NeedReason
    names: tuple[str, ...] = ()

    @property
    def option(self) -> DDPOption:
        """The option that the run needs."""
        return _OPTIONS[self.reason]

    @property
    def why(self) -> str:
        """The reason in one to three sentences."""
        return _SENTENCES[self.reason]


@dataclass(frozen=True, slots=True)
class DDPReady:
    """What a DistributedDataParallel run of a model needs. Printing it gives a table.

    `options` are the keyword arguments for DistributedDataParallel, and `use_reentrant` is for checkpointing. Neither
    reentrant checkpointing nor `static_graph` is ever needed. `measured` says whether batches were run; without
    batches the needs follow from the structure of the model, and no needs mean only that no optional part is known.
    """

    model: str
    needs: tuple[Need, ...]
    measured: bool
    use_reentrant: Literal[False] = field(default=False, init=False)
    static_graph: Literal[False] = field(default=False, init=False)

    @property
    def find_unused_parameters(self) -> bool:
        """Whether a step may leave parameters without gradient that DistributedDataParallel waits for."""
        return any(need.option is DDPOption.FIND_UNUSED for need in self.needs)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments for DistributedDataParallel."""
        return {"find_unused_parameters": True} if self.find_unused_parameters else {}

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value}" for name, value in self.options.items()) or "no options"
        limit = "" if self.needs else ", in which no optional part is known"
        unsure = f"by its structure{limit}. Nothing was run: a batch of each kind makes sure"
        source = "by the batches that were run" if self.measured else unsure
        title = f"{self.model}: DistributedDataParallel with {options}, {source}"
        rows = [(need.option.value, need.why, _shortened(need.names)) for need in self.needs]
        return "\n".join([title, *text_table(("needs", "why", "about"), rows)]) if rows else title


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return "\n".join([*names[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]) or "the whole model"
