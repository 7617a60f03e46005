"""Run a block that is cut at its attention: everything else in it takes one tile of the sequence at a time.

Forward: the block's own forward runs by tile until it calls its attention function, which then runs by groups of heads
over the whole sequence; then it runs by tile once more, and is given what attention has returned. Backward: the same
again with gradients, from the end. Only the input of the block is kept for it.

1. Parameters have one gradient each, as their hooks and DistributedDataParallel see it: tiles run on aliases of them.
2. Weights of half precision have their gradients added up over the tiles in float32.
3. If the call turns out not to be cuttable, nothing has been written, and the block runs as it would otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from ckpt_surgery.long_sequences.attention_call import (
    AttentionCall,
    CannotCut,
    Captured,
    Heads,
    answering,
    capture,
    intercepted,
)
from ckpt_surgery.long_sequences.cut_arguments import CutArguments, whole_argument
from ckpt_surgery.long_sequences.device_room import RoomTaken
from ckpt_surgery.long_sequences.parked import ParkedTiles
from ckpt_surgery.long_sequences.tiled_call import ModuleState, with_parameters
from ckpt_surgery.long_sequences.token_bytes import TokenBytes
from ckpt_surgery.measure.generators import devices_of, random_state_kept, seed_all
from ckpt_surgery.measure.model_hook import nothing
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.tools.classes import library_of
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.rng import torch_states
from ckpt_surgery.runtime.tools.untiled import untiled

_HEADS, _TOKENS = 1, 2
"""The dimensions of queries, keys and values."""
_GROUPS = 8
"""The most groups of heads, for which attention runs one after another."""
_HALVES = (torch.bfloat16, torch.float16)
Read = Callable[[int, slice], Tensor]
"""Gives a tile of the input by its index and its tokens."""
HeadStore = Tensor | ParkedTiles
"""Queries, keys or values of a group of heads, (batch, tokens, heads, width)."""


@dataclass(slots=True, eq=False)
class CutCall:
    """A call of `forward`, which runs `block`, in tiles of at most `size` tokens of each sequence.

    Attention runs for groups of heads, one after another, unless they stay `together`. With a `seed`, the same random
    numbers are drawn in both runs of a tile, and in the recompute. With a `transport`, heads wait for their turn on
    the host, and so does the input, unless room was `taken` for it on the device. `entered` is called as the forward
    and the backward begin.
    """

    block: nn.Module
    forward: Callable[..., Any]
    arguments: CutArguments
    size: int
    together: bool = False
    seed: int | None = None
    transport: HostTransport | None = None
    taken: RoomTaken | None = None
    entered: Callable[[], object] = nothing
    state: ModuleState = field(init=False)
    rest: tuple[Any, ...] | None = None
    """What the block returns after its tensor, if it returns a tuple."""
    token: TokenBytes | None = None
    """What a token takes, known once heads were computed."""
    _autocast: Sequence[tuple[str, bool, torch.dtype]] = ()
    _call: AttentionCall | None = None
    draws: bool = False
    """Whether random numbers were drawn."""
    _seeded: Mapping[torch.device, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = ModuleState.of(self.block)
        kinds = ("cpu", "cuda")
        self._autocast = [(k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds]

    @property
    def parts(self) -> list[slice]:
        """The tiles of the sequence."""
        tokens = self.arguments.tokens
        return [slice(start, min(start + self.size, tokens)) for start in range(0, tokens, self.size)]

    def output(self, read: Read) -> Tensor:
        """Return the tensor that the block returns; `read` gives the tiles of its input. Raises CannotCut."""
        with self.as_called():
            attended = self._attended(self.heads(read))
            pieces = [attended[:, part] for part in self.parts]
            whole: Tensor | None = None
            for index, part in enumerate(self.parts):
                result = self.after(read(index, part), index, part, pieces[index])
                if whole is None:
                    whole = self._output_memory(result, attended)
                whole[:, part] = result
            assert whole is not None
            return whole

    def _attended(self, groups: list[list[HeadStore]]) -> Tensor:
        """Return what attention returns for all groups of heads, which are removed from the list on the way."""
        whole: Tensor | None = None
        start, count = 0, len(groups)
        for group in range(count):
            result = self.attend(group, [_on_device(store, self.parts) for store in groups.pop(0)])
            if whole is None:
                whole = result.new_empty((*result.shape[:2], result.shape[2] * count, result.shape[3]))
            whole[:, :, start : start + result.shape[2]] = result
            start += result.shape[2]
        assert whole is not None
        return whole

    def _output_memory(self, result: Tensor, attended: Tensor) -> Tensor:
        """Return memory for the whole result: that of what attention returned, if it is as large.

        Each tile of that is read before a tile of the result is written. It is resized and not viewed, since a block's
        result that is a view could not be written to.
        """
        shape = (result.shape[0], self.arguments.tokens, *result.shape[2:])
        same = attended.dtype == result.dtype and attended.shape[2:].numel() == result.shape[2:].numel()
        return attended.resize_(shape) if same else result.new_empty(shape)

    def gradients(
        self, read: Read, gradient: Tensor, trained: Sequence[nn.Parameter], of_input: Tensor | None
    ) -> list[Tensor | None]:
        """Return the gradients of `trained` parameters from that of the output; write that of the input to `of_input`.

        `of_input` may share its memory with the gradient of the output.
        """
        self.state.check(type(self.block).__name__, self.block)
        aliases = [parameter.detach().requires_grad_() for parameter in trained]
        sums: list[Tensor | None] = [None] * len(trained)

        def back(outputs: Sequence[Tensor], of: Sequence[Tensor], *others: Tensor) -> list[Tensor | None]:
            """Add up the gradients of parameters, and return those of the others that have one."""
            pairs = [pair for pair in zip(outputs, of, strict=True) if pair[0].requires_grad]
            wanted = [*(other for other in others if other.requires_grad), *aliases]
            if not pairs or not wanted:
                return [None] * len(others)
            found = list(
                torch.autograd.grad(
                    [output for output, _ in pairs], wanted, [each for _, each in pairs], allow_unused=True
                )
            )
            results = [found.pop(0) if other.requires_grad else None for other in others]
            for place, (new, parameter) in enumerate(zip(found, trained, strict=True)):
                sums[place] = _added(sums[place], new, wide=parameter.dtype in _HALVES)
            return results

        def tiles() -> Iterator[tuple[int, slice, Tensor]]:
            for index, part in enumerate(self.parts):
                yield index, part, read(index, part).detach().requires_grad_(of_input is not None)

        with ExitStack() as stack:
            stack.enter_context(self.as_called())
            stack.enter_context(with_parameters(self.block, dict(zip(trained, aliases, strict=True))))
            groups = self.heads(read)
            stack.enter_context(torch.enable_grad())
            graphs = [GroupGraph(self, group, groups.pop(0)) for group in range(len(groups))]
            reached = [torch.empty_like(graph.result) for graph in graphs]
            for index, part, tile in tiles():
                attended = _of_part([graph.result.detach() for graph in graphs], part).requires_grad_()
                result = self.after(tile.view_as(tile), index, part, attended)  # trackers of modules take no leaf
                of_tile, of_attended = back([result], [gradient[:, part]], tile, attended)
                if of_input is not None:
                    of_input[:, part] = 0 if of_tile is None else of_tile
                start = 0
                for each in reached:
                    each[:, part] = 0 if of_attended is None else of_attended[:, :, start : start + each.shape[2]]
                    start += each.shape[2]
                del result, of_tile, of_attended
            of_heads = [graphs.pop(0).gradients(reached.pop(0)) for _ in range(len(graphs))]
            for index, part, tile in tiles():
                _, heads = self.before(tile.view_as(tile), index, part)
                of_part = [
                    _of_part([group[place] for group in of_heads], part).transpose(_HEADS, _TOKENS)
                    for place in range(len(heads))
                ]
                (of_tile,) = back(heads, of_part, tile)
                if of_input is not None and of_tile is not None:
                    of_input[:, part] += of_tile
        return [None if s is None else s.to(p.dtype) for s, p in zip(sums, trained, strict=True)]

    @contextmanager
    def as_called(self) -> Iterator[None]:
        """Set the autocast of the call inside, run MLPs untiled, and leave the generators outside as they were."""
        with ExitStack() as stack:
            stack.enter_context(untiled())
            stack.enter_context(intercepted(self.block))
            for kind, enabled, dtype in self._autocast:
                # a weight that autocast has cast belongs to the graph of one tile
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
            if self.seed is not None:
                stack.enter_context(random_state_kept({p.device for p in self.block.parameters()}))
            yield
            self._note_draws()

    def before(self, values: Tensor, index: int, part: slice) -> tuple[AttentionCall, Heads]:
        """Run the block on a tile until its attention; return the call, for the whole, and heads. Raises CannotCut."""
        (args, kwargs), wholes = self.arguments.tile(values, part)
        self._draw(index)
        try:
            with answering(capture):
                self.forward(*args, **kwargs)
        except Captured as captured:
            call, heads = captured.call, captured.heads
            captured.__traceback__ = None
        else:
            raise CannotCut("it calls no attention function of transformers")
        if library_of(call.function) != "transformers":
            raise CannotCut("its attention function is not of transformers: it may mix heads, or hold tensors")
        if any(each.dim() != 4 or each.shape[_TOKENS] != part.stop - part.start for each in heads):
            raise CannotCut("its attention is given something else than heads of its tokens")
        whole = partial(whole_argument, {id(tensor): tensor for tensor in tensors(self.arguments.given)} | wholes)
        options = {name: whole(name, value) for name, value in call.options.items()}
        return AttentionCall(call.function, call.module, whole("a mask", call.mask), options), heads

    def after(self, values: Tensor, index: int, part: slice, attended: Tensor) -> Tensor:
        """Run the block on a tile, with what attention has returned for it. Raises CannotCut."""
        (args, kwargs), _ = self.arguments.tile(values, part)
        calls = []

        def give(call: AttentionCall, heads: Heads) -> Tensor:
            calls.append(call.module)
            return attended

        self._draw(index)
        with answering(give):
            result = self.forward(*args, **kwargs)
        if len(calls) != 1:
            raise CannotCut(f"it calls attention {len(calls)} times")
        made, *rest = result if type(result) is tuple and result else (result,)
        if not isinstance(made, Tensor) or made.shape[:2] != attended.shape[:2] or any(True for _ in tensors(rest)):
            raise CannotCut("it returns something else than one tensor with its tokens")
        self.rest = tuple(rest) if type(result) is tuple else None
        return made

    def attend(self, group: int, heads: Sequence[Tensor]) -> Tensor:
        """Run attention for a group of heads, each (batch, tokens, heads, width)."""
        assert self._call is not None
        self._draw(len(self.parts) + group)
        query, key, value = (each.transpose(_HEADS, _TOKENS) for each in heads)
        return self._call.run((query, key, value))

    def heads_of(self, values: Tensor) -> list[Tensor]:
        """Return the queries, keys and values of a whole input on the device, in one group. Raises CannotCut."""
        (heads,) = self.heads(lambda index, part: values[:, part])
        return [each for each in heads if isinstance(each, Tensor)]

    @torch.no_grad()
    def heads(self, read: Read) -> list[list[HeadStore]]:
        """Return queries, keys and values of the whole sequence for each group of heads. Raises CannotCut."""
        groups: list[list[HeadStore]] = []
        for index, part in enumerate(self.parts):
            tile = read(index, part)
            call, heads = self.before(tile, index, part)
            if not groups:
                self._call = call
                count = call.groups(heads, _GROUPS)
                self.token = TokenBytes.of(self.arguments, tile, heads, count)
                count = 1 if self.together else count
                groups = [[self._new_store(each, count) for each in heads] for _ in range(count)]
            elif self._call is None or not call.is_like(self._call):
                raise CannotCut("its attention is given something else for each tile")
            for place, each in enumerate(heads):
                width = each.shape[_HEADS] // len(groups)
                for group, stores in enumerate(groups):
                    piece = each[:, group * width : (group + 1) * width].transpose(_HEADS, _TOKENS)
                    if isinstance(store := stores[place], ParkedTiles):
                        store.put(piece)
                    else:
                        store[:, part] = piece
        for store in (store for stores in groups for store in stores if isinstance(store, ParkedTiles)):
            store.finish()
        return groups

    def _new_store(self, like: Tensor, groups: int) -> HeadStore:
        if self.transport is not None:
            return ParkedTiles(self.transport)
        batch, heads, _, width = like.shape
        return like.new_empty((batch, self.arguments.tokens, heads // groups, width))

    def _draw(self, index: int) -> None:
        if self.seed is not None:
            self._note_draws()
            seed_all(self.seed + index)
            self._seeded = torch_states(devices_of(self.block))

    def _note_draws(self) -> None:
        if self._seeded and not self.draws:
            now = torch_states(devices_of(self.block))
            self.draws = any(not torch.equal(state, now[device]) for device, state in self._seeded.items())
        self._seeded = {}


class GroupGraph:
    """The graph of attention for one group of heads. Parked heads wait on the host until its backward."""

    def __init__(self, call: CutCall, group: int, stores: Sequence[HeadStore]) -> None:
        self._stores, self._parts = stores, call.parts
        self._loaded: dict[int, Tensor] = {}
        heads = [_on_device(store, call.parts) for store in stores]
        if not any(isinstance(store, ParkedTiles) for store in stores):
            self._heads: Sequence[Any] = [each.requires_grad_() for each in heads]
            self.result = call.attend(group, heads)
            return
        anchor = heads[0].new_zeros((), requires_grad=True)
        sources = [_Source.apply(anchor, each) for each in heads]  # type: ignore[no-untyped-call]
        self._heads = [get_gradient_edge(each) for each in sources]
        places = {each.untyped_storage()._cdata: place for place, each in enumerate(heads)}

        def pack(tensor: Tensor) -> Tensor | tuple[Any, ...]:
            place = places.get(tensor.untyped_storage()._cdata)
            return tensor if place is None else (place, tensor.shape, tensor.stride(), tensor.storage_offset())

        with saved_tensors_hooks(pack, self._again):
            self.result = call.attend(group, sources)

    def _again(self, packed: Tensor | tuple[Any, ...]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        place, *layout = packed
        if place not in self._loaded:
            self._loaded[place] = _on_device(self._stores[place], self._parts)
        return self._loaded[place].as_strided(*layout)

    def gradients(self, gradient: Tensor) -> Sequence[Tensor]:
        """Return the gradients of queries, keys and values, and let go of all else."""
        found = torch.autograd.grad(self.result, self._heads, gradient)
        self._loaded.clear()
        return found


class _Source(torch.autograd.Function):
    """A source of the graph whose gradient can be taken, although its node does not hold the tensor."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


def _on_device(store: HeadStore, parts: Sequence[slice]) -> Tensor:
    return store.whole(parts) if isinstance(store, ParkedTiles) else store


def _of_part(groups: Sequence[Tensor], part: slice) -> Tensor:
    """Return the heads of all groups for a part of the sequence, in memory of their own."""
    return torch.cat([group[:, part] for group in groups], 2) if len(groups) > 1 else groups[0][:, part].clone()


def _added(total: Tensor | None, new: Tensor | None, *, wide: bool) -> Tensor | None:
    if new is None:
        return total
    if total is None:
        return new.float() if wide else new
    return total.add_(new) if wide else total + new  # not in place: what autograd returned may be shared
