"""What stands in for the `forward` of a block, and the function that checkpoints it.

Both lie on the block itself, so that they are copied, pickled and taken away with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import SurgeryError, SurgeryWarning
from ckpt_surgery.runtime.block_state import BlockState
from ckpt_surgery.runtime.call_arguments import BlockSignature
from ckpt_surgery.runtime.offload import Offloader
from ckpt_surgery.runtime.recompute import Computation
from ckpt_surgery.runtime.rng import generator_state

FUNCTION = "_gradient_checkpointing_func"
"""The attribute in which transformers keeps the function that checkpoints a block. Here None switches it off."""


@dataclass(frozen=True)
class Checkpointing:
    """The function that checkpoints blocks: torch's, with its options; `more` go to it as they are.

    `random_free` promises that no block draws random numbers: then their generators need not be preserved.
    """

    use_reentrant: bool = False
    preserve_rng_state: bool = True
    random_free: bool = False
    context_fn: Callable[[], Any] | None = None
    offloader: Offloader | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    said: set[str] = field(default_factory=set, compare=False, repr=False)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` checkpointed; tensors with gradient are positional."""
        compiling = torch.compiler.is_compiling()
        options: dict[str, Any] = {"preserve_rng_state": self.preserve_rng_state, **self.more}
        options["use_reentrant"] = self.use_reentrant and not compiling and not self._under_ddp()
        if self.context_fn is not None:
            options["context_fn"] = self.context_fn
        preserved = self.preserve_rng_state or self.random_free
        if compiling or (preserved and self.offloader is None):
            return checkpoint(function, *args, **options, **kwargs)
        given = [value for value in args if isinstance(value, Tensor)]
        offloading = nullcontext() if self.offloader is None else self.offloader.saving(given)
        with offloading, nullcontext() if preserved else _drawing_nothing(given):
            return checkpoint(function, *args, **options, **kwargs)

    def _under_ddp(self) -> bool:
        """Whether this runs in the forward of a DistributedDataParallel; said once."""
        if not (dist.is_available() and dist.is_initialized()):
            return False
        if getattr(DistributedDataParallel, "_active_ddp_module", None) is None:
            return False
        if "ddp" not in self.said:
            self.said.add("ddp")
            warnings.warn(
                "use_reentrant=True would mark parameters ready twice under DistributedDataParallel: the blocks are "
                "checkpointed with use_reentrant=False there",
                SurgeryWarning,
                stacklevel=2,
            )
        return True


def random_options(preserve: object) -> dict[str, Any]:
    """The options of `Checkpointing` that `preserve_rng_state` stands for: True, False or "unsafe"."""
    return {"preserve_rng_state": preserve is True, "random_free": preserve == "unsafe"}


@contextmanager
def _drawing_nothing(given: Sequence[Tensor]) -> Iterator[None]:
    """Raise SurgeryError where what runs inside draws random numbers, which nobody preserves for its recompute."""
    devices = {tensor.device for tensor in given if tensor.device.type != "cpu"}
    before = generator_state(devices)
    yield
    if generator_state(devices) != before:
        raise SurgeryError(
            "preserve_rng_state=False and a block drew random numbers: the recompute would draw others; keep it True, "
            'or say preserve_rng_state="unsafe"'
        )


class BlockForward:
    """The `forward` of one block, as an attribute of the block itself: what was there before, checkpointed.

    `name` is the block's in the model. `beneath` is the forward that was on the instance before; None for that of
    the class, whichever it is at the time of a call. `over` is one that another library put on the instance later.
    """

    def __init__(self, name: str, block: nn.Module, *, skip_frozen: bool, beneath: Callable[..., Any] | None) -> None:
        self.name = name
        self.block = block
        self.skip_frozen = skip_frozen
        self.beneath = beneath
        self.over: Callable[..., Any] | None = None
        self.retired = False
        self._state = BlockState(block)
        self._inside = False
        self._sign()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_signed": None}

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """What runs the block without checkpointing."""
        if self.beneath is not None:
            return self.beneath
        return partial(type(self.block).forward, self.block)  # the compiler knows no methods made by hand

    @property
    def __self__(self) -> nn.Module:
        return self.block

    @property
    def place(self) -> str:
        """Which block this is, in words."""
        return f"{type(self.block).__name__} {self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block; checkpointed while it trains with gradients and has a function that checkpoints."""
        function = vars(self.block).get(FUNCTION)
        if function is None or self._inside or self.retired or not (self.block.training and torch.is_grad_enabled()):
            return self._plain()(*args, **kwargs)
        forward = self._plain()
        if torch.compiler.is_compiling():
            args, kwargs = self._signature.without_past(args, kwargs)
            return function(forward, *args, **kwargs)
        if self._signed is not self._signing():
            self._sign()
        call = self._signature.without_past(args, kwargs)
        computation = Computation(self.block, forward, self._signature, self._state, call)
        given = computation.tensors
        if not given:
            example = next((p for p in self.block.parameters() if p.requires_grad), None)
            if example is None and self.skip_frozen:
                return forward(*args, **kwargs)
            if example is not None:  # reentrant checkpointing is no part of the graph without one that needs gradient
                given = [torch.empty(0, device=example.device, requires_grad=True)]
        results = function(partial(MethodType(_run, self.block), computation), *given)
        return computation.output(results if isinstance(results, tuple) else (results,))

    def adopt(self, forward: Callable[..., Any] | None) -> None:
        """Checkpoint what another library has put in place of this: a forward, or, with None, that of the class."""
        self.over = forward
        vars(self.block)["forward"] = self

    def retire(self) -> None:
        """Do nothing from now on but run what is beneath: what was put over this may still call it."""
        self.retired = True
        self.over = None

    def _plain(self) -> Callable[..., Any]:
        return self.__wrapped__ if self.over is None or self._inside else self._from_over

    def _from_over(self, *args: Any, **kwargs: Any) -> Any:
        # what was put over this may call this in turn
        self._inside = True
        try:
            return cast(Callable[..., Any], self.over)(*args, **kwargs)
        finally:
            self._inside = False

    def _sign(self) -> None:
        self._signed = self._signing()
        self._signature = BlockSignature.of(self.place, self.block, self.over or self.__wrapped__)

    def _signing(self) -> Any:
        """What the arguments of the block go to."""
        return self.over or self.beneath or type(self.block).forward


def _run(block: nn.Module, computation: Computation, *given: Tensor) -> tuple[Tensor, ...]:
    """A method of the block, so that checkpointing functions that ask for `func.func.__self__` find the block."""
    return computation.run(*given)
