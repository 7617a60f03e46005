"""One call of a block as it was at entry: recorded, checked before it is run again, and rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import attrgetter
from typing import Any, TypeVar

from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.checkpoint.block_state import BlockState, Entry, Key
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments, BlockSignature, name_at
from ckpt_surgery.runtime.contents import CannotRestore, Contents
from ckpt_surgery.runtime.tools.containers import NOTHING, PLAIN, SPECS, Flattener, hidden_tensors, unflatten
from ckpt_surgery.runtime.tools.tensors import versions

Result = TypeVar("Result")
_requires_gradient: Callable[[Tensor], bool] = attrgetter("requires_grad")


class RecordedCall:
    """A call of `forward`, which runs `block`, with `arguments`.

    `tensors` are the arguments that require gradient, each once, in their order; whoever runs the call takes them
    away, so that they do not live as long as the record. `constants` are the tensors among the arguments that do not.
    `writable` tells whether an argument holds a container that the call can write into.
    """

    __slots__ = (
        "_constant_names",
        "_contents",
        "_entry",
        "_looks",
        "_opaque",
        "_specs",
        "_versions",
        "block",
        "constants",
        "forward",
        "signature",
        "state",
        "tensors",
        "writable",
    )

    def __init__(
        self,
        block: nn.Module,
        forward: Callable[..., Any],
        signature: BlockSignature,
        state: BlockState,
        arguments: Arguments,
    ) -> None:
        args, kwargs = arguments
        flattener = Flattener(_requires_gradient)

        def spec(name: str, value: Any) -> Any:
            return flattener.flatten(_own_copy(value) if name in signature.past else value, name)

        self._specs: Arguments = (
            tuple([spec(name_at(signature.names, place), value) for place, value in enumerate(args)]),
            {name: value if type(value) in PLAIN else spec(name, value) for name, value in kwargs.items()},
        )
        self.block = block
        self.forward = forward
        self.signature = signature
        self.state = state
        self.tensors = flattener.tensors
        self._looks = [
            (place, type(each), _given_attributes(each))
            for place, each in enumerate(self.tensors)
            if type(each) is not Tensor or vars(each)
        ]
        self.writable = flattener.writable
        self.constants = [tensor for _, tensor in flattener.constants]
        self._constant_names = [name for name, _ in flattener.constants]
        self._versions = versions(self.constants)
        self._opaque = flattener.opaque
        self._contents: Contents | None = None
        self._entry: Entry | None = None

    @property
    def place(self) -> str:
        """Which block this is, for messages."""
        return self.signature.place

    def begin(self, *, watching: bool) -> Entry:
        """Note what is there before the first pass; with `watching`, also what the block seldom depends on."""
        state = self.state
        self._entry = entry = state.entry(watching=watching)
        if self._opaque:
            self._contents = Contents(self._opaque, written=state.written_arguments, copy_all=not state.known)
        return entry

    def cut_arguments(self) -> list[tuple[str, Tensor]]:
        """What stands in for tensors with a graph that objects among the arguments lead to, with their names."""
        return [] if self._contents is None else [(str(name), tensor) for name, tensor in self._contents.cut.values()]

    def end(self) -> set[Key]:
        """What the first pass wrote on the block's modules. Raises SurgeryError where it cannot be run again."""
        assert self._entry is not None
        try:
            if self._contents:
                self._contents.check_generators()
                self.state.written_arguments |= {str(name) for name in self._contents.changed()}
            return self.state.learn(self._entry)
        except CannotRestore as error:
            raise self._refusal(error) from None

    @contextmanager
    def as_at_entry(self, *, keeping: Collection[Key] = (), trusting: bool = False) -> Iterator[Mapping[int, Any]]:
        """Inside, the block and the objects among its arguments are as before the first pass; then as they are now.

        Gives what stands in for arguments, for `rebuilt`. What is in `keeping` is as it is now. With `trusting`, a
        call that wrote nothing is not watched while it is run again. Raises SurgeryError where that cannot be.
        """
        assert self._entry is not None
        with ExitStack() as stack:
            try:
                if not (trusting and self.state.is_as_at(self._entry)):
                    stack.enter_context(self.state.as_at_entry(self._entry, keeping=keeping))
                stand_ins = stack.enter_context(self._contents.restored()) if self._contents else NOTHING
            except CannotRestore as error:
                raise self._refusal(error) from None
            before = versions(self.constants)
            try:
                yield stand_ins
            finally:
                self._check_constants(before)

    def run_as_at_entry(
        self, run: Callable[[Mapping[int, Any]], Result], *, keeping: Collection[Key] = (), trusting: bool
    ) -> Result:
        """What `run` makes of the stand-ins of `as_at_entry`, inside of it."""
        assert self._entry is not None
        if self._contents or not (trusting and self.state.is_as_at(self._entry)):
            with self.as_at_entry(keeping=keeping, trusting=trusting) as stand_ins:
                return run(stand_ins)
        before = versions(self.constants)
        try:
            return run(NOTHING)
        finally:
            self._check_constants(before)

    def release(self) -> None:
        """Forget what only a recompute needs, after the last one: objects noted at entry may lead to results."""
        self._entry = self._contents = None
        self._specs, self.constants, self._versions, self._opaque = ((), {}), [], [], []
        self._looks = []

    def state_at_entry(self) -> AbstractContextManager[None]:
        """The same for the block alone and before the first pass: what is written into the arguments stays."""
        assert self._entry is not None
        return self.state.as_at_entry(self._entry, spare=True)

    def _refusal(self, error: CannotRestore) -> SurgeryError:
        name = error.root if isinstance(error.root, str) else self._name_of(error.root)
        return SurgeryError(
            f"{self.place} cannot be recomputed: {name} {error.what}; keep it as it was until the backward, or leave "
            "the block out"
        )

    def _name_of(self, key: Any) -> str:
        module, name = key
        path = next((path for path, part in self.block.named_modules() if part is module), "")
        return f"its {path}.{name}" if path else f"its {name}"

    def rebuilt(self, given: Sequence[Tensor], stand_ins: Mapping[int, Any]) -> Arguments:
        """The arguments as they were, with `given` in the places of `tensors`, and what `as_at_entry` gave.

        These get the class and the attributes that `tensors` had. Raises SurgeryError where the block would now
        compute something else.
        """
        self._check_constants(self._versions)
        if self._looks:
            given = list(given)
            for place, kind, attributes in self._looks:
                given[place] = _looking(given[place], kind, attributes)
        positional, keywords = self._specs
        args = tuple([unflatten(spec, given, stand_ins) for spec in positional])
        if stand_ins or not SPECS.isdisjoint(map(type, keywords.values())):
            return args, {name: unflatten(spec, given, stand_ins) for name, spec in keywords.items()}
        return args, dict(keywords)

    def refuse_hidden_gradients(self, besides: Collection[Tensor]) -> None:
        """Raise SurgeryError where an object of unknown structure holds tensors that require gradient.

        So may attributes of a tensor. Those in `besides` do not count.
        """
        for name, value in (pair for _, _, attributes in self._looks for pair in attributes.items()):
            if any(tensor.requires_grad for tensor in hidden_tensors(value)):
                raise SurgeryError(
                    f"{self.place} got a tensor whose attribute {name} holds tensors with gradient: with "
                    "use_reentrant=True their gradient would be lost; use use_reentrant=False"
                )
        for name, value in self._opaque:
            if any(tensor.requires_grad and tensor not in besides for tensor in hidden_tensors(value)):
                raise SurgeryError(
                    f"{self.place} got tensors with gradient inside a {type(value).__name__} in its argument {name}: "
                    "with use_reentrant=True their gradient would be lost; use use_reentrant=False"
                )

    def _check_constants(self, before: Sequence[int]) -> None:
        """Raise SurgeryError where one of `constants` was written since they had these versions."""
        now = versions(self.constants)
        if now != before:
            pairs = zip(self._constant_names, before, now, strict=True)
            name = next(name for name, old, new in pairs if old != new)
            raise SurgeryError(
                f"{self.place} cannot be recomputed: its argument {name} was modified in place after the "
                "forward; leave the block out, or give it a copy"
            )


def _looking(tensor: Tensor, kind: type[Tensor], attributes: Mapping[str, Any]) -> Tensor:
    """A tensor of this class with these attributes; of parameters, others than the very ones are plain tensors."""
    if type(tensor) is not kind and not issubclass(kind, nn.Parameter):
        tensor = tensor.as_subclass(kind)
    vars(tensor).update(attributes)
    return tensor


def _given_attributes(tensor: Tensor) -> dict[str, Any]:
    """The attributes that somebody gave this tensor; a tensor subclass may hold what it is in others."""
    its_own = vars(tensor.detach())
    return {name: value for name, value in vars(tensor).items() if name not in its_own}


def _own_copy(value: Any) -> Any:
    """Past state as it is now: the caller may write into it before the recompute."""
    if isinstance(value, Tensor):
        return value if value.requires_grad else value.clone()
    if isinstance(value, (tuple, list)):
        return type(value)(map(_own_copy, value)) if not hasattr(value, "_fields") else value
    return value
