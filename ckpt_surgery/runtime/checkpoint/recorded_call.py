"""One block call as it was on entry: record it, check it before it runs again, and rebuild it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from ckpt_surgery.errors import SurgeryError, SurgeryWarning
from ckpt_surgery.runtime.checkpoint.call_arguments import NEVER_PAST, Arguments, BlockSignature, CacheAtEntry, name_at
from ckpt_surgery.runtime.checkpoint.state import Attribute, BlockState, StateEntry
from ckpt_surgery.runtime.tools.containers import PLAIN, Flattener, hidden_tensors, unflatten
from ckpt_surgery.runtime.tools.tensors import versions

_AS_THEY_ARE = PLAIN | {Tensor, tuple}  # specs of these types stand for themselves


class RecordedCall:
    """A call of `forward`, which runs a block, with `arguments`.

    `tensors` are the arguments that require gradient, each once, in their order; whoever runs the call takes them
    from here, so that they do not live as long as the record. Containers and caches among the arguments are recorded
    as they were, because a block may write to both.
    """

    __slots__ = (
        "_constants",
        "_ended",
        "_entry",
        "_objects",
        "_specs",
        "_state",
        "_versions",
        "forward",
        "signature",
        "tensors",
    )

    def __init__(
        self, forward: Callable[..., Any], signature: BlockSignature, state: BlockState, arguments: Arguments
    ) -> None:
        self.forward = forward
        self.signature = signature
        self._state = state
        self._entry: StateEntry | None = None
        self._objects: list[tuple[str, Any]] = []
        self._ended = False
        flat = Flattener()
        spec, spec_of, names = flat.flatten, self._spec_of, signature.names
        args, kwargs = arguments
        self._specs: Arguments = (
            tuple(
                [spec(v) if type(v) in NEVER_PAST else spec_of(name_at(names, i), v, flat) for i, v in enumerate(args)]
            ),
            {name: spec(v) if type(v) in NEVER_PAST else spec_of(name, v, flat) for name, v in kwargs.items()},
        )
        self.tensors = flat.tensors
        self._constants = flat.constants
        self._versions = versions(self._constants)

    def begin(self, *, watching: bool) -> None:
        """Record what the block may read besides its arguments, before the first pass.

        Raises SurgeryError if an object among the arguments still holds what an earlier recompute added to it.
        """
        self._entry = self._state.entry(watching=watching)
        for name, value in self._objects:
            if 0 < self._state.grown.get(value, 0) <= _size(value):
                raise self._growth_error(name, value)

    def noting_hooks(self) -> AbstractContextManager[None]:
        """Return a context for the first pass that notes which script hooks inside the block return something.

        Those are put back for the recompute.
        """
        return nullcontext() if self._entry is None else self._entry.noting_hooks()

    def tolerating_hooks(self, failed: Callable[[Exception], None]) -> AbstractContextManager[None]:
        """Return a context for a recompute in which errors of the script's hooks go to `failed`."""
        return nullcontext() if self._entry is None else self._entry.tolerating_hooks(failed)

    def end(self) -> None:
        """End the first pass. Warns about state that the block began to write while it was not watched."""
        self._ended = True
        if self._entry is None:  # recording it failed, and that was reported
            return
        if late := self._state.learn(self._entry):
            warnings.warn(
                f"{self.signature.place} began to change {' and '.join(late)} after its first steps: recomputes since "
                "then may have done so once more; from now on that is put back",
                SurgeryWarning,
                stacklevel=2,
            )

    def written(self) -> list[Attribute]:
        """Return what the first pass, which was watched and has ended, wrote to the block's modules."""
        assert self._entry is not None
        return self._state.written(self._entry)

    def restoring(self) -> AbstractContextManager[None] | None:
        """Return a context that restores the modules' state from before the first pass; None if that still holds.

        It puts the present state back on exit. Raises SurgeryError if a weight was written to since.
        """
        if self._entry is None:
            return None
        if (name := self._state.written_parameter(self._entry)) is not None:
            raise self._refusal(f"its {name}")
        restoring = None if self._entry.still_holds() else self._state.as_at_entry(self._entry)
        return self._noting_additions(restoring or nullcontext()) if self._objects else restoring

    @contextmanager
    def _noting_additions(self, restoring: AbstractContextManager[None]) -> Iterator[None]:
        """Note the objects to which a recompute inside adds. Raises SurgeryError if the first pass still runs."""
        before = [_size(value) for _, value in self._objects]
        try:
            with restoring:
                yield
        finally:
            for size, (name, value) in zip(before, self._objects, strict=True):
                if (now := _size(value)) > size:
                    self._state.grown[value] = now
                    if not self._ended:
                        raise self._growth_error(name, value)

    def rebuilt(self, given: Sequence[Tensor]) -> Arguments:
        """Return the recorded arguments, with `given` in place of `tensors`."""
        args, kwargs = self._specs
        return (
            tuple([_rebuilt(spec, given) for spec in args]),
            {name: spec if type(spec) in _AS_THEY_ARE else _rebuilt(spec, given) for name, spec in kwargs.items()},
        )

    def refuse_written(self) -> None:
        """Raise SurgeryError if an argument that requires no gradient was written to since."""
        if (now := versions(self._constants)) != self._versions:
            pairs = zip(self._constants, self._versions, now, strict=True)
            written = next(tensor for tensor, old, new in pairs if old != new)
            raise self._refusal(f"its argument {self.signature.holder_of(written, *self._specs)}")

    def _spec_of(self, name: str, value: Any, flattener: Flattener) -> Any:
        """Return the spec of an argument that may be past state; note an object to which a recompute could add."""
        if self.signature.is_past(name, value):
            cache = CacheAtEntry.of(value)
            flattener.constants.extend(cache.tensors)
            return cache
        spec = flattener.flatten(value)
        if spec is value and isinstance(value, Hashable) and type(value).__weakrefoffset__:
            self._objects.append((name, value))
        return spec

    def _growth_error(self, name: str, value: Any) -> SurgeryError:
        return SurgeryError(
            f"{self.signature.place} cannot be checkpointed: its recompute adds to its argument {name}, a "
            f"{type(value).__name__}, what a forward then reads; derive the class from the Cache of transformers, or "
            "leave the block out"
        )

    def _refusal(self, what: str) -> SurgeryError:
        return SurgeryError(
            f"{self.signature.place} cannot be recomputed: {what} was modified in place after the forward; keep it as "
            "it was until the backward, give the block a copy, or leave the block out"
        )


def _size(value: Any) -> int:
    return sum(tensor.numel() for tensor in hidden_tensors(value))


def _rebuilt(spec: Any, given: Sequence[Tensor]) -> Any:
    return spec.again() if type(spec) is CacheAtEntry else unflatten(spec, given)
