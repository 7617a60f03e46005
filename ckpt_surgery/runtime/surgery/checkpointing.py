"""The function that checkpoints a block: the one of torch, called with the options of a surgery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.offload.buffer_pool import PinnedPool
from ckpt_surgery.runtime.offload.disk_transport import DiskTransport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.selective.policies import RANDOM, compiled_contexts
from ckpt_surgery.runtime.surgery.options import SurgeryOptions
from ckpt_surgery.runtime.tools.error_policy import ErrorPolicy
from ckpt_surgery.runtime.tools.rng import generator_state
from ckpt_surgery.torch_names import TorchDispatchMode


@dataclass(frozen=True)
class Checkpointing:
    """A stand-in for `torch.utils.checkpoint.checkpoint` that holds its options; those in `more` go to it unchanged.

    It is set on the blocks, so that it is copied, pickled and removed with them. `save` names the
    operators whose results these blocks keep.
    """

    options: SurgeryOptions
    offloader: Offloader | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    save: tuple[str, ...] | None = None
    error_policy: ErrorPolicy = field(default_factory=ErrorPolicy, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.offloader is not None:
            self.offloader.error_policy = self.error_policy

    @classmethod
    def of(cls, options: SurgeryOptions, error_policy: ErrorPolicy) -> Checkpointing:
        """Return the function for these options, with a new offloader if they ask for offload."""
        return cls(options, _offloader(options), error_policy=error_policy)

    def changed(self, more: Mapping[str, Any] | None = None, **options: Any) -> Checkpointing:
        """Return a copy with other options, and `more` for torch. Raises SurgeryError as SurgeryOptions does."""
        changed, offloader = replace(self.options, **options), self.offloader
        if changed.offload != self.options.offload:
            self.release()
            offloader = _offloader(changed)
        return replace(self, options=changed, offloader=offloader, more={**self.more, **(more or {})})

    def release(self) -> None:
        """Free the memory that offload holds for later steps."""
        if self.offloader is not None:
            self.offloader.release()

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` checkpointed; tensors with gradient are positional."""
        options = self.options
        compiling = torch.compiler.is_compiling()
        passed = {"preserve_rng_state": options.preserve_rng_state is True, **self.more, "use_reentrant": False}
        if options.context_fn is not None:
            passed["context_fn"] = options.context_fn if self.save is None else partial(self._other_contexts, options)
        elif compiling and self.save is not None:
            passed["context_fn"] = partial(compiled_contexts, self.save)
        may_draw = options.preserve_rng_state is not False or RANDOM in (self.save or ())
        if compiling or (may_draw and self.offloader is None):
            return checkpoint(function, *args, **passed, **kwargs)
        given = [value for value in args if isinstance(value, Tensor)]
        offloading = nullcontext() if self.offloader is None else self.offloader.saving(given)
        devices = {tensor.device for tensor in given if tensor.device.type != "cpu"}
        before = b"" if may_draw else generator_state(devices)
        with offloading:
            output = checkpoint(function, *args, **passed, **kwargs)
        if before and before != generator_state(devices):
            with self.error_policy:
                raise SurgeryError(
                    "preserve_rng_state=False and a block drew random numbers: the recompute would draw others; keep "
                    'it True, or say preserve_rng_state="unsafe"'
                )
        return output

    @staticmethod
    def _other_contexts(options: SurgeryOptions) -> Any:
        """Return the contexts of `context_fn`. Raises SurgeryError if they choose what is kept, as `save` does."""
        contexts = options.context_fn() if options.context_fn is not None else ()
        if any(isinstance(context, TorchDispatchMode) for context in contexts):
            raise SurgeryError("save and context_fn both say what is kept: give one of the two")
        return contexts


def _offloader(options: SurgeryOptions) -> Offloader | None:
    if options.offload is None:
        return None
    if options.offload == "cpu":
        return Offloader(HostTransport(PinnedPool(options.offload_pinned)))
    return Offloader(DiskTransport(None if options.offload == "disk" else options.offload))
