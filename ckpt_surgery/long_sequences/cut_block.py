"""Decide whether the calls of a block can be cut at its attention, and run them so.

A block can be cut if it mixes tokens only in one call of an attention function of transformers. That is tried on a few
tokens in its first call: together, and in two halves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.long_sequences.attention_call import CannotCut
from ckpt_surgery.long_sequences.cut_arguments import CutArguments
from ckpt_surgery.long_sequences.cut_call import CutCall
from ckpt_surgery.long_sequences.cut_function import CutFunction
from ckpt_surgery.long_sequences.device_room import DeviceRoom
from ckpt_surgery.long_sequences.token_bytes import TokenBytes, free_bytes
from ckpt_surgery.long_sequences.token_probe import MeanDraws, Trial, autocast_uncached, is_close
from ckpt_surgery.measure.generators import devices_of, random_state_kept
from ckpt_surgery.measure.model_hook import nothing
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments, BlockSignature, is_cache
from ckpt_surgery.runtime.checkpoint.state import BlockState
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.tools.classes import PACKAGE, library_of
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.torch_names import CALL_HOOKS, FSDP1_FLATTENED, FakeTensor, disable_current_modes

_PROBED = 8
"""The tokens on which a block is tried."""
_ROUNDS = 3
"""How often a block is tried: rounding may make a router choose other experts, but hardly three times in a row."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_FEWEST = 1024
"""The fewest tokens in a tile, all sequences together, so that the device has more to do than the host."""


class BlockCut:
    """The forward of `block`, cut at its attention.

    A tile has as many tokens, all sequences together, as the block is wide, and at least 1,024; if `tokens`, those of
    a batch, are given, every batch has as many tiles as those need. A batch that fits in one tile is not cut unless it
    `parks` or there is `room`: that would save nothing, and cost the host time. With `parks`, the input and the heads
    wait on the host, tile by tile; None decides that by whether they, and the gradients of `model` still to come, fit
    on the device. Inputs stay on the device as far as `room` allows. `reason` says why the last call was not cut,
    `calls` counts those that were, `parked` says whether the last of them was, and `token` what a token took in it.
    """

    def __init__(
        self, block: nn.Module, model: nn.Module, tokens: int | None, *, parks: bool | None, room: DeviceRoom | None
    ) -> None:
        self.block = block
        self.reason: str | None = None
        self.calls = 0
        self.parked = False
        self.token: TokenBytes | None = None
        self._model, self._tokens, self._parks, self._room = model, tokens, parks, room
        self._tried: list[tuple[nn.Module, Any]] = []
        self._cannot_be_cut = False

    @property
    def way(self) -> str:
        """Say in words what becomes of its calls."""
        if self.reason is not None:
            return f"not cut: {self.reason}"
        if self.calls:
            return "cut at its attention"
        return (
            "cut at its attention where a batch has more tokens than a tile"
            if self._tried
            else "to be cut at its attention"
        )

    def __call__(
        self,
        forward: Callable[..., Any],
        signature: BlockSignature,
        arguments: Arguments,
        function: Callable[..., Any],
    ) -> Any:
        """Return what the block returns; NotImplemented if the call is not cut."""
        parts = [(part, vars(part).get("forward")) for part in self.block.modules()]
        if self._cannot_be_cut and parts == self._tried:
            return NotImplemented
        try:
            values = _input_of(signature, arguments)
            trained = self._trained()
            if not (trained or values.requires_grad):
                return NotImplemented
            offloader = getattr(inspect.unwrap(function), "offloader", None)
            if not isinstance(offloader, Offloader):
                offloader = None
            call = CutCall(
                self.block,
                forward,
                CutArguments.of(arguments, values),
                self._size(values),
                entered=getattr(function, "entered", nothing),
            )
            if parts != self._tried:
                self._tried, self._cannot_be_cut = parts, True
                self._examine(call, values)
                self._cannot_be_cut = False
            if call.size >= values.shape[1] and not self._parks and self._room is None:
                self.reason = None
                return NotImplemented
            if _is_real(values):
                with random_state_kept(()):
                    call.seed = int(torch.randint(2**31, ()))
            moves = offloader
            if offloader is not None and self._room is not None:
                call.taken = self._room.take(values.nbytes)
                moves = offloader if call.taken is None else None
            if offloader is not None and self._has_to_park(values):
                call.transport, moves = offloader.transport, None
            with nullcontext() if moves is None else moves.saving([values]):
                made = CutFunction.apply(call, values, *trained)  # type: ignore[no-untyped-call]
        except CannotCut as error:
            self.reason = str(error)
            return NotImplemented
        if call.draws:  # the next call draws something else
            torch.randint(2**31, ())
        self.calls, self.reason = self.calls + 1, None
        self.parked, self.token = call.transport is not None, call.token
        return made if call.rest is None else (made, *call.rest)

    def _size(self, values: Tensor) -> int:
        batch, tokens, width = values.shape
        if self._tokens is None:
            return -(-max(width, _FEWEST) // max(batch, 1))
        return -(-tokens // max(1, -(-self._tokens // width)))

    def _has_to_park(self, values: Tensor) -> bool:
        if self._parks is not None or self.token is None:
            return bool(self._parks)
        free = free_bytes(values.device)
        if free is None:
            return False
        to_come = sum(p.nbytes for p in self._model.parameters() if p.requires_grad and p.grad is None)
        return self.token.on_device(parks=False) * values.shape[:2].numel() > free - to_come

    def _trained(self) -> list[nn.Parameter]:
        """Return the parameters that require gradient. Raises CannotCut."""
        inner = (part for part in self.block.modules() if part is not self.block)
        hooks = (hook for part in inner for table in CALL_HOOKS for hook in getattr(part, table).values())
        if any(library_of(hook) != PACKAGE for hook in hooks):
            raise CannotCut("hooks inside of it would run for each tile")
        trained = [parameter for parameter in self.block.parameters() if parameter.requires_grad]
        if any(
            type(p) not in (nn.Parameter, FakeTensor) or not p.is_leaf or hasattr(p, FSDP1_FLATTENED) for p in trained
        ):
            raise CannotCut("its parameters are of a class of their own, or split over ranks")
        return trained

    def _examine(self, call: CutCall, like: Tensor) -> None:
        """Try the block on a few tokens. Raises CannotCut if it cannot be cut."""
        if not _is_real(like):  # there are no values to compare
            if any(isinstance(part, _CONVOLUTIONS) and max(part.kernel_size) > 1 for part in self.block.modules()):
                raise CannotCut("it has a convolution")
            return
        tokens = min(_PROBED, like.shape[1])
        shape = (like.shape[0], tokens, like.shape[2])
        with ExitStack() as stack:
            stack.enter_context(disable_current_modes())
            stack.enter_context(torch.no_grad())
            stack.enter_context(autocast_uncached())
            stack.enter_context(random_state_kept((*devices_of(self.block), like.device)))
            try:
                stack.enter_context(Trial(self.block).call())
                if written := self._written(call, torch.randn(shape, device=like.device).to(like.dtype)):
                    raise CannotCut(f"it writes {written} on its modules")
                rounds = (torch.randn(shape, device=like.device).to(like.dtype) for _ in range(_ROUNDS))
                if tokens > 1 and all(self._mixes(call, values) for values in rounds):
                    raise CannotCut("it mixes tokens outside of its attention")
            except CannotCut:
                raise
            except Exception as error:
                raise CannotCut(f"it does not run on {tokens} tokens ({type(error).__name__}: {error})") from error

    def _part(self, call: CutCall, values: Tensor, size: int) -> CutCall:
        """Return the call for the first tokens alone."""
        given, _ = call.arguments.tile(values, slice(0, values.shape[1]))
        return CutCall(self.block, call.forward, CutArguments.of(given, values), size, together=True)

    def _written(self, call: CutCall, values: Tensor) -> str | None:
        """Name an attribute that a run writes on modules, if any."""
        whole = self._part(call, values, values.shape[1])
        state = BlockState(self.block)
        with whole.as_called():
            entry = state.entry(watching=True)
            attended = self._attended(whole, values)
            assert whole.token is not None
            self.token = replace(whole.token, beside=call.arguments.bytes_beside)
            whole.after(values, 0, slice(0, values.shape[1]), attended)
            state.learn(entry)
            written = [name for _, name in state.written(entry)]
        return written[0] if written else None

    def _mixes(self, call: CutCall, values: Tensor) -> bool:
        tokens = values.shape[1]
        whole, halves = (self._part(call, values, size) for size in (tokens, -(-tokens // 2)))
        with whole.as_called(), MeanDraws():  # type: ignore[no-untyped-call]
            pairs = list(zip(whole.heads_of(values), halves.heads_of(values), strict=True))
            attended = self._attended(whole, values)
            together = whole.after(values, 0, slice(0, tokens), attended)
            apart = [halves.after(values[:, p], i, p, attended[:, p]) for i, p in enumerate(halves.parts)]
            pairs.append((torch.cat(apart, 1), together))
        return not all(is_close(ours, theirs) for ours, theirs in pairs)

    def _attended(self, whole: CutCall, values: Tensor) -> Tensor:
        """Return random values in the form of what attention returns."""
        query, _, value = whole.heads_of(values)
        return torch.randn((*query.shape[:3], value.shape[3]), device=query.device).to(query.dtype)


def _is_real(values: Tensor) -> bool:
    return type(values) is Tensor and not values.is_meta


def _input_of(signature: BlockSignature, arguments: Arguments) -> Tensor:
    """Return the input of the block: the first of its arguments. Raises CannotCut."""
    named = dict(signature.named(*arguments))
    values = named.get(signature.names[0]) if signature.names else None
    if not isinstance(values, Tensor) or values.dim() != 3 or not values.is_floating_point():
        raise CannotCut("its input is not one tensor (batch, tokens, width)")
    if values.shape[1] < 2:
        raise CannotCut("it is given one token")
    if any(tensor.requires_grad and tensor is not values for tensor in tensors(arguments)):
        raise CannotCut("more of its arguments need a gradient than its input")
    if any(map(is_cache, named.values())):
        raise CannotCut("it is given a cache")
    return values
