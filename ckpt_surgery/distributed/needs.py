"""The needs of a DistributedDataParallel run, as data and in words. `ready` finds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from ckpt_surgery.text import text_table

_SHOWN = 3  # names in a line of the table


class DDPOption(Enum):
    """A setting that a run may need, as users write it."""

    FIND_UNUSED = "find_unused_parameters=True"
    NON_REENTRANT = "use_reentrant=False"
    NO_STATIC_GRAPH = "static_graph=False"


_LEFT_WAITING = (
    "DistributedDataParallel then waits for them: the step ends with each rank's own gradients, and only the next "
    "forward raises, or a rank hangs."
)


class NeedReason(Enum):
    """Why a run needs an option: each value is the option, and the reason in one to three sentences."""

    OPTIONAL_INPUT = (
        DDPOption.FIND_UNUSED,
        f"A step without the input that these take may leave them without gradient. {_LEFT_WAITING}",
    )
    LAYER_DROP = (
        DDPOption.FIND_UNUSED,
        "LayerDrop may leave out any of these blocks, or elements of these lists, in a step. Their parameters then "
        "get no gradient.",
    )
    ROUTED_EXPERTS = (
        DDPOption.FIND_UNUSED,
        "An expert of these lists that is given no token in a step may get no gradient. Batches cannot show that "
        "this never happens.",
    )
    NEVER_USED = (
        DDPOption.FIND_UNUSED,
        "These got no gradient in any batch given. If no batch of the run gives them one, freeze them with "
        f"requires_grad_(False); otherwise let every step search for them. {_LEFT_WAITING}",
    )
    USED_AT_TIMES = (
        DDPOption.FIND_UNUSED,
        f"These got a gradient in some of the batches only. {_LEFT_WAITING}",
    )
    STEPS_DIFFER = (
        DDPOption.NO_STATIC_GRAPH,
        "static_graph=True does not help: DistributedDataParallel notes in step 0 which parameters are used, and "
        "never looks again. A later step that uses fewer ends with each rank's own gradients, and only the next "
        "forward raises.",
    )
    READY_TWICE = (
        DDPOption.NON_REENTRANT,
        "Several blocks, or calls of a block, use these: with reentrant checkpointing the recompute of each marks "
        'them ready. DistributedDataParallel raises "Expected to mark a variable ready only once" or, if all else is '
        "ready by then, adds the later part to gradients that are averaged already, without an error.",
    )
    SEARCH_BLIND = (
        DDPOption.NON_REENTRANT,
        "find_unused_parameters=True and reentrant checkpointing never go together: the search does not see into "
        "checkpointed blocks and marks their parameters ready as unused; the backward marks them again, which raises.",
    )
    INNER_BACKWARD = (
        DDPOption.NON_REENTRANT,
        "These got their gradients from a backward inside the backward, as of reversible blocks or checkpoint(..., "
        "use_reentrant=True) in a forward. The search marks them ready as unused, and the backward marks them again, "
        "which raises: checkpoint with use_reentrant=False, or freeze what gets no gradient and leave the search out.",
    )
    REENTRANT_NOW = (
        DDPOption.NON_REENTRANT,
        "These checkpoint with use_reentrant=True now: call wrap_blocks(model), or "
        'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}).',
    )


@dataclass(frozen=True, slots=True)
class Need:
    """A reason to set an option, and the names of the parameters or modules concerned; none for the whole model."""

    reason: NeedReason
    names: tuple[str, ...] = ()

    @property
    def option(self) -> DDPOption:
        """The option that the run needs."""
        return self.reason.value[0]

    @property
    def why(self) -> str:
        """The reason in one to three sentences."""
        return self.reason.value[1]


@dataclass(frozen=True, slots=True)
class DDPReady:
    """The needs of a DistributedDataParallel run of a model. Printing it gives a table.

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
        if not self.needs:
            return title
        rows = []
        for need in self.needs:
            more = [f"and {len(need.names) - _SHOWN} more"] if len(need.names) > _SHOWN else []
            rows.append((need.option.value, need.why, "\n".join([*need.names[:_SHOWN], *more]) or "the whole model"))
        return "\n".join([title, *text_table(("needs", "why", "about"), rows)])
