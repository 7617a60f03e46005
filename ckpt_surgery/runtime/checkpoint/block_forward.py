"""The checkpointed `forward` of a block: an attribute that is set on the block, and copied and pickled with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments, BlockSignature
from ckpt_surgery.runtime.checkpoint.recompute import Computation
from ckpt_surgery.runtime.checkpoint.recorded_call import RecordedCall
from ckpt_surgery.runtime.checkpoint.state import BlockState
from ckpt_surgery.runtime.selective.kept_results import KeptResults
from ckpt_surgery.runtime.selective.save_policy import SavePolicy
from ckpt_surgery.runtime.selective.watched_operators import Shortcuts, shortcuts_of
from ckpt_surgery.runtime.self_check.check import SelfCheck
from ckpt_surgery.runtime.self_check.quick_check import QuickCheck
from ckpt_surgery.runtime.self_check.schedule import CheckSchedule
from ckpt_surgery.runtime.tools.error_policy import ErrorPolicy
from ckpt_surgery.torch_names import TransformType, forward_mode_level, innermost_transform, transform_stack

Cut = Callable[[Callable[..., Any], BlockSignature, Arguments, Callable[..., Any]], Any]
"""Runs a call, given its forward, signature and arguments and the checkpoint function, or returns NotImplemented."""
_NO_TRANSFORMS: frozenset[TransformType] = frozenset()


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a surgery that apply to the calls of one block.

    With `skip_frozen`, a call in which nothing requires gradient runs without checkpointing. `policy` says what a call
    keeps, if anything, and `moves_kept` whether that is offloaded with the block's inputs. With `fills_cache`, another
    part of the model reads the cache that the block fills. With `in_evaluation`, the block is checkpointed in
    evaluation mode too, as its library does.
    """

    skip_frozen: bool
    policy: SavePolicy | None = None
    moves_kept: bool = False
    fills_cache: bool = False
    in_evaluation: bool = False


class BlockForward:
    """The checkpointed `forward` of one block, set on the block itself.

    `name` is the block's in the model. `original` is the forward that was on the instance before; None stands for that
    of the class at the time of a call. `replacement` is one that another library put on the instance later. `cut` is
    asked first: it runs a call in its own way, or returns NotImplemented. `schedule` says which calls are checked.
    `given_caches` are those with which the model was called. Once `error_policy` has reported an error, torch
    checkpoints the calls as they come.
    """

    def __init__(
        self,
        name: str,
        block: nn.Module,
        *,
        options: CallOptions,
        schedule: CheckSchedule,
        given_caches: GivenCaches,
        error_policy: ErrorPolicy,
        original: Callable[..., Any] | None,
    ) -> None:
        self.name = name
        self.block = block
        self.options = options
        self.schedule = schedule
        self.given_caches = given_caches
        self.error_policy = error_policy
        self.original = original
        self.replacement: Callable[..., Any] | None = None
        self.cut: Cut | None = None
        self.retired = False
        self._shortcuts: Shortcuts | None = None
        self._state = BlockState(block)
        self._in_replacement = False
        self._read_signature()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_signature_of": None, "_shortcuts": None}

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function that runs the block without checkpointing."""
        if self.original is not None:
            return self.original
        return partial(type(self.block).forward, self.block)  # torch.compile does not know methods bound by hand

    @property
    def __self__(self) -> nn.Module:
        return self.block

    @property
    def place(self) -> str:
        """The name of the block in messages."""
        return f"{type(self.block).__name__} {self.name}"

    @property
    def in_mode(self) -> bool:
        """Whether the block is in a mode in which it is checkpointed."""
        return self.block.training or self.options.in_evaluation

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block: checkpointed while it trains with gradients and has a checkpointing function."""
        function = self.block.__dict__.get(FUNCTION)  # torch 2.8 cannot compile `vars` of a module
        # what runs without checkpointing; the original once the replacement is running
        forward = self.__wrapped__ if self.replacement is None or self._in_replacement else self._run_replacement
        if function is None or not (self.in_mode and torch.is_grad_enabled()) or self._in_replacement or self.retired:
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            args, kwargs = self._signature.without_own_caches(args, kwargs, self.given_caches)
            return function(forward, *args, **kwargs)
        if self.cut is not None:
            arguments = self._signature.without_own_caches(args, kwargs, self.given_caches)
            if (cut := self.cut(forward, self._signature, arguments, function)) is not NotImplemented:
                return cut
        transforms = _NO_TRANSFORMS
        if innermost_transform() is not None:
            transforms = frozenset(level.key() for level in transform_stack() or ())
        forward_mode = forward_mode_level() >= 0 or bool(transforms and TransformType.Jvp in transforms)
        if forward_mode and TransformType.Grad not in transforms:
            return forward(*args, **kwargs)  # it needs no backward, and could not go through a checkpoint
        given: list[Tensor] = []
        computation: Computation | None = None
        with self.error_policy:
            if transforms and (TransformType.Grad in transforms or TransformType.Vmap in transforms):
                # a grad allows no hooks on saved tensors, and the tensors of a vmap cannot be used after it
                name = "grad, or one that is made of it" if TransformType.Grad in transforms else "vmap"
                raise SurgeryError(
                    f"{self._signature.place} cannot be checkpointed inside a transform of torch.func ({name}): "
                    "switch checkpointing off around it, with undo() on the surgery"
                )
            if not self.error_policy.reported:
                given, computation = self._prepared(forward, args, kwargs)
        if computation is None:
            return forward(*args, **kwargs) if transforms else function(forward, *args, **kwargs)
        if not given:
            parameters = list(self.block.parameters())
            if self.options.skip_frozen and not any(parameter.requires_grad for parameter in parameters):
                if self.options.policy is not None:
                    self.options.policy.left_out(self.name)
                return forward(*args, **kwargs)
            if parameters:  # torch restores the generators of the devices of its arguments
                given = [torch.empty(0, device=parameters[0].device)]
        try:
            output = function(partial(computation), *given)  # libraries find the block as `func.func.__self__`
        finally:
            computation.check_ended()
        return output

    def _prepared(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Tensor], Computation]:
        """Return the gradient arguments of a call, and the call as a function of them."""
        if self._signature_of is not self._innermost():
            self._read_signature()
        arguments = self._signature.without_own_caches(args, kwargs, self.given_caches)
        policy, kept = self.options.policy, None
        if policy is not None:
            if self._shortcuts is None:
                self._shortcuts = shortcuts_of(self.block) if policy.keeps_linears else ()
            kept = KeptResults(policy, self.name, self.place, moves=self.options.moves_kept, shortcuts=self._shortcuts)
        call = RecordedCall(forward, self._signature, self._state, arguments)
        check: SelfCheck | None = None
        depth = self.schedule.due(call.tensors)
        if depth is not None:
            captured = any(tensor.is_cuda for tensor in call.tensors) and torch.cuda.is_current_stream_capturing()
            kind = SelfCheck if depth == "close" else QuickCheck
            # replays of a CUDA graph are not compared
            check = None if captured else kind(self.place, self.block, self.error_policy, self.schedule)
        recomputed = partial(self.schedule.recomputed, compared=check is not None)
        return call.tensors, Computation(self.block, call, arguments, check, kept, recomputed, self.error_policy)

    def adopt(self, forward: Callable[..., Any] | None) -> None:
        """Checkpoint the forward that another library has put in place of this; None stands for that of the class."""
        self.replacement = forward
        vars(self.block)["forward"] = self

    def retire(self) -> None:
        """Only run the original from now on: a forward that was put around this one may still call it."""
        self.retired = True
        self.replacement = None

    def _run_replacement(self, *args: Any, **kwargs: Any) -> Any:
        self._in_replacement = True
        try:
            return cast(Callable[..., Any], self.replacement)(*args, **kwargs)
        finally:
            self._in_replacement = False

    def _read_signature(self) -> None:
        self._signature_of = self._innermost()
        forward = self.replacement or self.__wrapped__
        fills = self.options.fills_cache
        self._signature = BlockSignature.of(self.place, self.block, forward, fills_cache=fills)

    def _innermost(self) -> Any:
        """Return the function that receives the block's arguments."""
        return self.replacement or self.original or type(self.block).forward


class GivenCaches:
    """The caches that exist before a model runs: passed by its caller, or kept on one of its modules.

    Those that the model makes in its forward do not count. All are held weakly; copies and pickles have none.
    `asked_for` says whether the caller asked for a cache: models ask their parts for one whatever the caller said.
    """

    def __init__(self) -> None:
        self.asked_for = False
        self._model: ref[nn.Module] | None = None
        self._given: WeakSet[Any] = WeakSet()
        self._made: WeakSet[Any] = WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return GivenCaches, ()

    def __contains__(self, value: Any) -> bool:
        if value not in self._given and value not in self._made:
            modules = () if self._model is None or (model := self._model()) is None else model.modules()
            kept = any(held is value for module in modules for held in vars(module).values())
            (self._given if kept else self._made).add(value)
        return value in self._given

    def begin(self, model: nn.Module, *, asked_for: bool) -> None:
        """Note that a call of the outermost model begins."""
        self._model = ref(model)
        self.asked_for = asked_for

    def note(self, caches: Iterable[Any]) -> None:
        """Note the caches among the arguments of a module that runs blocks."""
        self._given.update(caches)
