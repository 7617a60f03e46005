"""One instrumented training step: forward, loss, backward, and a record of what was seen.

Measures only. What two records mean next to each other is said in `compare`.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ckpt_surgery.verification.entries import Entries, EntryCounter
from ckpt_surgery.verification.preserve import left_as_found

Checkpointing = Literal["non_reentrant", "reentrant"]


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """What one step showed. Tensors lie on the CPU, in the dtype that the run had, and share no memory with it.

    `loss` is NaN where the forward failed. `gradients` holds every parameter that requires gradient, by name
    and in its own shape; None where the backward never reached it. `input_gradients` does so for the inputs
    that came with `requires_grad`. `entries` has one count per block. `buffers` are their values after the step.
    `saved_bytes` are the bytes that autograd held between forward and backward: every storage once, those of
    parameters and buffers left out. `generated` are the token ids, shape (batch, length), where asked for.
    `error` is one line, with the pass that raised it; what was not reached then is missing.
    """

    checkpointing: Checkpointing | None
    seed: int
    loss: float
    gradients: Mapping[str, Tensor | None]
    input_gradients: Mapping[str, Tensor | None]
    entries: Mapping[str, Entries]
    buffers: Mapping[str, Tensor]
    saved_bytes: int
    generated: Tensor | None = None
    error: str | None = None


def run_step(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    blocks: Mapping[str, nn.Module],
    checkpointing: Checkpointing | None = None,
    seed: int = 0,
    loss: Callable[[Any], Tensor] | None = None,
    generate: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Train `model` for one step in training mode, without an optimizer, and hand it back as it was.

    `inputs` are the keyword arguments of the model; the step works on copies. A float input gets a gradient
    only where it requires one: a stack whose first block takes plain pixels has to be seen as it is.
    `blocks` maps names to the modules of `model` whose entries are counted. `checkpointing` None switches
    checkpointing off, also where it was on. `loss` turns the model's output into a scalar (default: `loss_of`).
    `generate` are arguments for `model.generate`, which then runs after the step, in evaluation mode.
    The same `seed`, before the forward and before `generate`, gives the same dropout in every run.

    An exception in forward, loss, backward or `generate` ends up in the record's `error`. Raises TypeError
    where the model has no method to switch checkpointing on, ValueError where a block is not a module of the model.
    """
    with left_as_found(model):
        model.train()
        switch_checkpointing(model, checkpointing)
        arguments = {name: _own(value) for name, value in inputs.items()}
        step = _Step()
        with EntryCounter(model, blocks) as counter:
            _seed(seed)
            step.run(model, arguments, loss or loss_of, counter)
        if generate is not None and step.error is None:
            step.generate(model, generate, seed)
        return RunRecord(
            checkpointing=checkpointing,
            seed=seed,
            loss=step.loss,
            gradients={n: _taken(p.grad) for n, p in model.named_parameters() if p.requires_grad},
            input_gradients={n: _taken(t.grad) for n, t in arguments.items() if _wants_gradient(t)},
            entries=counter.entries(),
            buffers={n: b.detach().to("cpu", copy=True) for n, b in model.named_buffers()},
            saved_bytes=step.saved_bytes,
            generated=step.generated,
            error=step.error,
        )


def loss_of(output: Any) -> Tensor:
    """The output's own `loss`, or a scalar that every float tensor in it bears on differently.

    The latter weighs element i of each tensor by cos(i), divided by the square root of their number: a sum of
    squares would hardly move where the last thing a model does is to normalise. Raises ValueError where the
    output holds no float tensor that requires gradient.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own.mean()
    terms = [_weighed(tensor) for tensor in _tensors(output) if tensor.is_floating_point() and tensor.requires_grad]
    if not terms:
        raise ValueError("the model's output holds no loss and no float tensor that requires gradient")
    return torch.stack([term.to(terms[0].device, terms[0].dtype) for term in terms]).sum()


@dataclass(slots=True)
class _Step:
    """The forward, the backward and `generate` themselves, as far as they got."""

    loss: float = float("nan")
    saved_bytes: int = 0
    generated: Tensor | None = None
    error: str | None = None

    def run(
        self,
        model: nn.Module,
        arguments: Mapping[str, Any],
        loss: Callable[[Any], Tensor],
        counter: EntryCounter,
    ) -> None:
        stage = "forward"
        held = _HeldTensors()
        try:
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
                output = model(**arguments)
                value = loss(output)
            self.loss = float(value.detach())
            self.saved_bytes = held.bytes(apart_from=[*model.parameters(), *model.buffers()])
            stage = "backward"
            counter.start_backward()
            value.backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # a step that breaks is a result, not a mistake of the caller
            self.error = _line(stage, error)

    def generate(self, model: nn.Module, arguments: Mapping[str, Any], seed: int) -> None:
        model.eval()
        _seed(seed)
        try:
            tokens = cast(Any, model).generate(**{name: _own(value) for name, value in arguments.items()})
        except Exception as error:
            self.error = _line("generate", error)
        else:
            self.generated = getattr(tokens, "sequences", tokens).to("cpu", copy=True)


def _line(stage: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{stage} raised {type(error).__name__}: {text}"


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Held:
    tensor: Tensor
    version: int


@dataclass(slots=True)
class _HeldTensors:
    """Hooks for autograd's saved tensors that know which are still held."""

    alive: weakref.WeakSet[_Held] = field(default_factory=weakref.WeakSet)

    def pack(self, tensor: Tensor) -> _Held:
        # the tensor itself would keep its own graph alive in a circle
        held = _Held(tensor.detach(), tensor._version)
        self.alive.add(held)
        return held

    def unpack(self, held: _Held) -> Tensor:
        # autograd skips this check for tensors that went through hooks
        if held.tensor._version != held.version:
            raise RuntimeError("a tensor needed for the backward has been modified by an inplace operation")
        return held.tensor

    def bytes(self, apart_from: list[Tensor]) -> int:
        """The size of the storages held now, without those of `apart_from`."""
        known = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
        storages = [held.tensor.untyped_storage() for held in self.alive]
        sizes = {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in known}
        return sum(sizes.values())


def switch_checkpointing(model: nn.Module, checkpointing: Checkpointing | None) -> None:
    """Switch checkpointing on in the given mode, or off, through whichever method the release has.

    Raises TypeError where it has none to switch it on.
    """
    # late 5.x has both, and there the older name only warns
    prefixes = ("activation", "gradient")
    verb = "disable" if checkpointing is None else "enable"
    names = [f"{prefix}_checkpointing_{verb}" for prefix in prefixes]
    method = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    if checkpointing is None:
        if method is not None:
            method()
    elif method is None:
        raise TypeError(
            f"{type(model).__name__} has no method gradient_checkpointing_enable to switch checkpointing on"
        )
    else:
        method({"use_reentrant": checkpointing == "reentrant"})


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def _own(value: Any) -> Any:
    """A copy that the step may write into."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.deepcopy(value)


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _taken(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().to("cpu", copy=True)


def _weighed(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    weights = torch.arange(flat.numel(), device=flat.device, dtype=torch.float64).cos()
    total: Tensor = (flat * weights.to(flat.dtype)).sum()
    return total / math.sqrt(max(flat.numel(), 1))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
