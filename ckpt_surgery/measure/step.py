"""One instrumented training step: forward, loss, backward, and a record of what was seen.

Measures only. What two records mean next to each other is said in `compare`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.measure.block_entries import Entries, EntryCounter
from ckpt_surgery.measure.meter import Meter, other_rounding
from ckpt_surgery.measure.observed_calls import CallFacts, CallObserver
from ckpt_surgery.measure.restore import left_as_found
from ckpt_surgery.measure.results import Timeline
from ckpt_surgery.model_patches.vocabulary import is_past_state
from ckpt_surgery.runtime.call_arguments import is_cache
from ckpt_surgery.runtime.containers import tensors
from ckpt_surgery.runtime.rng import devices_of, generator_state, seed_all

Checkpointing = Literal["non_reentrant", "reentrant"]

_GATE = 1e-3
_LONG = 160  # characters; torch likes to go on after it has said what is wrong
_NOTHING = Timeline((), 0)


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """What one step showed. Tensors lie on the CPU, in the dtype that the run had, and share no memory with it.

    `loss` is NaN where the forward failed. `gradients` holds every parameter that requires gradient, by name
    and in its own shape; None where the backward never reached it. `input_gradients` does so for the inputs
    that came with `requires_grad`. `entries` has one count per block. `buffers` are their values after the step, and
    those of parameters that the step itself wrote into.
    `kept_bytes` are the bytes that the forward left alive for the backward (see `meter`), `best_kept_bytes` those
    that would be left if every block kept only what it was given and returned. FLOPs are counted for forward
    and backward; `block_flops` are the part of the forward that lies in blocks. `cache` maps inputs that are
    caches to their size before the step, after the forward and after the backward. `calls` tells how the blocks
    were called and `aside` which of them made tensors that others used behind their back; both are known, like
    the best bytes and the block FLOPs, of runs without checkpointing only. `other_randomness` are blocks whose
    recompute began with another state of torch's generator than their forward, `random_moved` tells whether the
    backward left that generator in another state. `generated` are the token ids, shape (batch, length), where
    asked for. `error` is one line, with the pass that raised it; what was not reached then is missing. `refused` is
    the sentence of that error where a surgery raised it.
    """

    checkpointing: Checkpointing | None
    seed: int
    loss: float
    gradients: Mapping[str, Tensor | None]
    input_gradients: Mapping[str, Tensor | None]
    entries: Mapping[str, Entries]
    buffers: Mapping[str, Tensor]
    kept_bytes: int
    best_kept_bytes: int = 0
    forward_flops: int = 0
    backward_flops: int = 0
    block_flops: int = 0
    timeline: Timeline = _NOTHING
    cache: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    calls: Mapping[str, CallFacts] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()
    other_randomness: tuple[str, ...] = ()
    random_moved: bool = False
    generated: Tensor | None = None
    error: str | None = None
    refused: str = ""


def run_step(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    blocks: Mapping[str, nn.Module],
    checkpointing: Checkpointing | None = None,
    seed: int = 0,
    loss: Callable[[Any], Tensor] | None = None,
    generate: Mapping[str, Any] | None = None,
    open_gates: bool = False,
    rounded_otherwise: int = 0,
) -> RunRecord:
    """Train `model` for one step, without an optimizer, and hand it back as it was.

    Its modules stay in the mode that they are in; checkpointing layers do nothing in evaluation mode.

    `inputs` are the keyword arguments of the model; the step works on copies. A float input gets a gradient
    only where it requires one: a stack whose first block takes plain pixels has to be seen as it is.
    `blocks` maps names to the modules of `model` whose entries are counted. `checkpointing` None switches
    checkpointing off, also where it was on. `loss` turns the model's output into a scalar (default: `loss_of`).
    `generate` are arguments for `model.generate`, which then runs after the step, in evaluation mode.
    The same `seed`, before the forward and before `generate`, gives the same dropout in every run; between
    forward and backward the generators are seeded otherwise, as a recompute must not depend on them.
    `open_gates` gives parameters that are zero, or nearly, random values: behind a gate that is closed a lost
    gradient cannot be told from a zero. `rounded_otherwise` adds up in another order, with
    each number another: what then differs is noise.

    An exception in forward, loss, backward or `generate` ends up in the record's `error`. Raises TypeError
    where the model has no method to switch checkpointing on, ValueError where it refuses to or where a block is
    not a module of the model.
    """
    with left_as_found(model):
        switch_checkpointing(model, checkpointing)
        if open_gates:
            _open_gates(model)
        versions = {n: (p, p._version) for n, p in model.named_parameters()}
        step = _Step({name: _own(value) for name, value in inputs.items()}, seed)
        with EntryCounter(model, blocks) as counter:
            step.run(model, loss or loss_of, counter, blocks if checkpointing is None else {}, rounded_otherwise)
        if generate is not None and step.error is None:
            step.generate(model, generate)
        return RunRecord(
            checkpointing=checkpointing,
            seed=seed,
            loss=step.loss,
            gradients={n: _taken(p.grad) for n, p in model.named_parameters() if p.requires_grad},
            input_gradients={n: _taken(t.grad) for n, t in _wanting(step.arguments)},
            entries=counter.entries(),
            buffers={n: b.detach().to("cpu", copy=True) for n, b in (*model.named_buffers(), *_written(versions))},
            kept_bytes=step.meter.kept_bytes,
            best_kept_bytes=step.meter.best_kept_bytes,
            forward_flops=step.meter.forward_flops,
            backward_flops=step.meter.backward_flops,
            block_flops=step.meter.block_flops,
            timeline=step.meter.timeline(p.grad for p in model.parameters() if p.grad is not None),
            cache={name: _three(sizes) for name, sizes in step.cache.items()},
            calls=step.calls,
            aside=frozenset(step.meter.aside),
            other_randomness=counter.other_randomness(),
            random_moved=step.random_moved,
            generated=step.generated,
            error=step.error,
            refused=step.refused,
        )


def loss_of(output: Any) -> Tensor:
    """The output's own `loss`, or a scalar that every float tensor in it bears on differently.

    The latter weighs element i of each tensor by cos(i), divided by the square root of their number: a sum of
    squares would hardly move where the last thing a model does is to normalise. Past state is left out, as
    models return none while they checkpoint. Raises ValueError where the output holds no float tensor that
    requires gradient.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad:
        return own.mean()
    results = [v for n, v in output.items() if not is_past_state(n)] if isinstance(output, Mapping) else output
    terms = [_weighed(tensor) for tensor in tensors(results) if tensor.is_floating_point() and tensor.requires_grad]
    if not terms:
        raise ValueError("the model's output holds no loss and no float tensor that requires gradient")
    return torch.stack([term.to(terms[0].device, terms[0].dtype) for term in terms]).sum()


@dataclass(slots=True)
class _Step:
    """The forward, the backward and `generate` themselves, as far as they got."""

    arguments: dict[str, Any]
    seed: int
    meter: Meter = field(default_factory=Meter)
    loss: float = float("nan")
    cache: dict[str, tuple[int, ...]] = field(default_factory=dict)
    calls: dict[str, CallFacts] = field(default_factory=dict)
    random_moved: bool = False
    generated: Tensor | None = None
    error: str | None = None
    refused: str = ""

    def run(
        self,
        model: nn.Module,
        loss: Callable[[Any], Tensor],
        counter: EntryCounter,
        observed: Mapping[str, nn.Module],
        rounded_otherwise: int,
    ) -> None:
        stage = "forward"
        devices = devices_of(model)
        self._measure_caches()
        seed_all(self.seed)
        try:
            # the one entered last sees an operator first, so the meter counts what the other makes of it
            with self.meter, other_rounding(rounded_otherwise) if rounded_otherwise else contextlib.nullcontext():
                with torch.enable_grad(), CallObserver(observed, self.meter) as observer:
                    output = model(**self.arguments)
                    stage = "loss"
                    value = _scalar(loss(output))
                    del output
                self.loss = float(value.detach())
                self._measure_caches()
                seed_all(self.seed + 1)
                before = generator_state(devices)
                stage = "backward"
                counter.start_backward()
                self.meter.start_backward(value)
                value.backward()  # type: ignore[no-untyped-call]
            self.random_moved = before != generator_state(devices)
            self._measure_caches()
            self.calls = observer.facts()
        except Exception as error:  # a step that breaks is a result, not a mistake of the caller
            self.error = _line(stage, error)
            self.refused = " ".join(str(error).split()) if isinstance(error, SurgeryError) else ""

    def generate(self, model: nn.Module, arguments: Mapping[str, Any]) -> None:
        model.eval()
        seed_all(self.seed)
        try:
            tokens = cast(Any, model).generate(**{name: _own(value) for name, value in arguments.items()})
        except Exception as error:
            self.error = _line("generate", error)
        else:
            self.generated = getattr(tokens, "sequences", tokens).to("cpu", copy=True)

    def _measure_caches(self) -> None:
        for name, value in self.arguments.items():
            if is_cache(value):
                self.cache[name] = (*self.cache.get(name, ()), _extent(value))


def _extent(cache: Any) -> int:
    """The length of a cache in positions; where it has none, the number of elements that its tensors hold."""
    try:
        length = int(cache.get_seq_length())
    except Exception:  # recurrent caches have the method and raise, or lack it
        length = 0
    return length or sum(tensor.numel() for tensor in tensors(list(vars(cache).values())))


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Sizes before, between and after; what was not reached counts as it was last."""
    before, *later = sizes
    between = later[0] if later else before
    return before, between, later[1] if len(later) > 1 else between


def _line(stage: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    first = text.partition(". ")[0] if len(text) > _LONG else text
    return f"{stage} raised {type(error).__name__}: {first.rstrip('.')}"


def switch_checkpointing(model: nn.Module, checkpointing: Checkpointing | None) -> None:
    """Switch checkpointing on in the given mode, or off, through whichever method the release has.

    Late releases also make the embeddings' outputs require gradient when it is switched on. A run without is to
    differ in nothing else, so they stay like that when it is switched off here.

    Raises TypeError where it has none to switch it on; what that method itself raises passes through.
    """
    if checkpointing is not None:
        enable = _method(model, "enable")
        if enable is None:
            name = type(model).__name__
            raise TypeError(f"{name} has no method gradient_checkpointing_enable to switch checkpointing on")
        _call_enable(enable, {"use_reentrant": checkpointing == "reentrant"})
        return
    disable = _method(model, "disable")
    if disable is None:
        return
    # releases differ in whether they refuse to switch on, and off, what no module of the model has
    with contextlib.suppress(Exception):
        switch_checkpointing(model, "non_reentrant")
    with contextlib.suppress(ValueError):
        disable()
    if getattr(model, "_hf_peft_config_loaded", False):  # then those outputs were set back
        cast(Any, model).enable_input_require_grads()


def _method(model: nn.Module, verb: str) -> Callable[..., Any] | None:
    # late 5.x has both, and there the older name only warns
    names = [f"{prefix}_checkpointing_{verb}" for prefix in ("activation", "gradient")]
    return next((getattr(model, name) for name in names if hasattr(model, name)), None)


def _call_enable(enable: Callable[..., Any], options: dict[str, Any]) -> None:
    """Hand over the options under the name that the method has for them, else as its first argument."""
    parameters = inspect.signature(enable).parameters
    name = next((name for name in parameters if name.endswith("_checkpointing_kwargs")), None)
    enable(options) if name is None else enable(**{name: options})


def _own(value: Any) -> Any:
    """A copy that the step may write into. Tensors in it are leaves, whatever made those of `value`."""
    leaves = {id(t): t.detach().clone().requires_grad_(t.requires_grad) for t in tensors(value)}
    return leaves[id(value)] if isinstance(value, Tensor) else copy.deepcopy(value, dict(leaves))


def _wanting(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors among the arguments that require gradient; those inside containers are numbered."""
    for name, value in arguments.items():
        for number, tensor in enumerate(tensors(value)):
            if tensor.requires_grad and tensor.is_leaf:
                yield name if tensor is value else f"{name}[{number}]", tensor


def _written(versions: Mapping[str, tuple[Tensor, int]]) -> Iterator[tuple[str, Tensor]]:
    """The parameters that have been written into since their versions were noted."""
    return ((name, parameter) for name, (parameter, version) in versions.items() if parameter._version != version)


def _scalar(value: Any) -> Tensor:
    """The loss, if it is one. Raises TypeError or ValueError where it cannot be trained on."""
    if not isinstance(value, Tensor):
        raise TypeError(f"the loss is a {type(value).__name__}: it has to be a tensor with one element")
    if value.numel() != 1:
        raise ValueError(f"the loss has the shape {tuple(value.shape)}: it has to be a tensor with one element")
    if not value.requires_grad:
        raise ValueError("the loss needs no gradient: it has to depend on a parameter that requires one")
    return value


def _taken(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    dense = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
    return dense.to("cpu", copy=True)


def _weighed(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    weights = torch.arange(flat.numel(), device=flat.device, dtype=torch.float64).cos()
    total: Tensor = (flat * weights.to(flat.dtype)).sum()
    return total / math.sqrt(max(flat.numel(), 1))


def _open_gates(model: nn.Module) -> None:
    """Give every parameter that is zero or tiny small random values, always the same."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or parameter.itemsize < 2 or not parameter.numel():
                continue  # quantised ones are no gates
            if float(parameter.abs().max()) < _GATE:
                values = torch.randn(parameter.shape, generator=generator) * 0.02
                parameter.add_(values.to(parameter.device, parameter.dtype))
