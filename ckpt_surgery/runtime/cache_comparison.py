"""Whether a block computes something else with the cache that it is given than without, as reentrant mode runs it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.contents import Contents
from ckpt_surgery.runtime.observed_calls import watching
from ckpt_surgery.runtime.self_check.fingerprints import bits_of
from ckpt_surgery.runtime.tensor_origins import TensorOrigins
from ckpt_surgery.runtime.tools.containers import hidden_tensors, is_differentiable, tensors
from ckpt_surgery.runtime.tools.rng import torch_states, torch_states_kept

left_in_caches = WeakTensorKeyDictionary()
"""What blocks wrote into caches when they were run with them for comparison. It has no gradient to give."""


def sum_with_caches(call: RecordedCall, arguments: Arguments, watched: Collection[nn.Module]) -> int | None:
    """The sum of what the call makes with its caches, which keep what it writes there for the blocks after it.

    Nobody is to use that with gradient, or what hooks on `watched` keep of this run: in other calls it is not there.
    """
    args, kwargs = arguments
    caches = [(n, v) for n, v in call.signature.named(args, kwargs) if call.signature.is_past(n, v)]
    before = {id(tensor): tensor for _, cache in caches for tensor in hidden_tensors(cache)}
    own = list(call.block.parameters())
    sources = [tensor for tensor in (*tensors(arguments), *own) if tensor.requires_grad]
    untouched = before.keys() | {id(tensor) for tensor in (*sources, *own, *call.block.buffers())}
    devices = {tensor.device for tensor in tensors(arguments) if tensor.device.type != "cpu"}
    kept = torch_states_kept(torch_states(devices))
    origins = TensorOrigins(sources)
    with kept, call.state_at_entry(), watching(watched, weakref.ref) as seen, origins:
        made = None
        with suppress(Exception):  # the first pass will raise it, too
            made = first_sum(call.forward(*args, **kwargs))
        written = Contents(caches)
    written.put_back()
    left = [(tensor, name) for name, cache in caches for tensor in hidden_tensors(cache)]
    seen_by_hooks = [(tensor, "") for reference in seen.values() if (tensor := reference()) is not None]
    for tensor, name in (*left, *seen_by_hooks):
        if id(tensor) not in untouched and not tensor.requires_grad and origins.descends_from_sources(tensor):
            tensor.requires_grad_().register_hook(_refusal_of_comparison(call.place, name))
            left_in_caches[tensor] = None
    return made


def first_sum(output: Any) -> int | None:
    """The sum over the bits of the first tensor of an output."""
    bits = next((bits_of(tensor) for tensor in tensors(output) if is_differentiable(tensor)), None)
    return None if bits is None else int(bits)


def _refusal_of_comparison(place: str, cache: str) -> Callable[[Tensor], None]:
    """A hook for a tensor of a run with caches, left in one or seen by a hook: it has no gradient to give."""
    what = f"what {place} wrote into {cache}" if cache else f"a tensor that a hook kept inside {place}"

    def refuse(gradient: Tensor) -> None:
        raise SurgeryError(
            f"{what} was used by others: with use_reentrant=True and a cache its gradient would be lost; use "
            "use_reentrant=False, or train without a cache"
        )

    return refuse
