"""Run one instrumented training step: forward, loss and backward, and a record of what was seen.

This only measures. `compare` judges two records.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.arguments import call_arguments
from ckpt_surgery.measure.block_entries import EntryCounter
from ckpt_surgery.measure.contents import Contents, contents_of, differ, outputs_of
from ckpt_surgery.measure.generators import devices_of, own_generators, seed_all, state_of
from ckpt_surgery.measure.loss import loss_of, scalar
from ckpt_surgery.measure.meter import Meter, PerturbedRounding
from ckpt_surgery.measure.observed_calls import CallFacts, CallMarker, CallObserver
from ckpt_surgery.measure.own_checkpoints import OwnCheckpoints, own_functions
from ckpt_surgery.measure.record import NEGLIGIBLE, MemoryRecord, RunRecord, StepError, StepPart, input_name
from ckpt_surgery.measure.restore import model_state_kept
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.surgical_blocks import save_policies
from ckpt_surgery.measure.switch import Switch, switch_checkpointing
from ckpt_surgery.model_patches.release_names import CLAIM, FLAG
from ckpt_surgery.runtime.checkpoint.call_arguments import CACHE_DEPTH, is_cache
from ckpt_surgery.runtime.tools.classes import BATCH_COUNT, norms_with_momentum
from ckpt_surgery.runtime.tools.containers import hidden_tensors, tensors
from ckpt_surgery.runtime.tools.rng import GeneratorStates, generator_state
from ckpt_surgery.runtime.tools.tensors import inner_tensors
from ckpt_surgery.text import error_line

_GATE = 1e-3
"""The largest entry of a parameter up to which it counts as a closed gate."""
_LIBRARIES = ("torch", "transformers", "peft", "diffusers", "timm")
"""Packages that keep nothing of a training in global variables."""


def run_step(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    blocks: Mapping[str, nn.Module],
    checkpointing: Mode | None = None,
    seed: int = 0,
    loss: Callable[[Any], Tensor] | None = None,
    rounding_seed: int = 0,
    switch: Switch = switch_checkpointing,
) -> RunRecord:
    """Run one training step of `model` without an optimizer, then restore the model.

    Modules stay in training or evaluation mode as they are; checkpointing layers do nothing in evaluation mode.

    `inputs` are the arguments of the model by name (see `call_arguments`); the step works on copies. A float input
    gets a gradient only if it requires one: a stack whose first block takes plain pixels must be measured as it is.
    `blocks` maps names to the modules of `model` whose entries are counted. `checkpointing` None switches
    checkpointing off, even if it was on. `loss` turns the model's output into a scalar (default: `loss_of`).
    The generators are seeded with `seed` before the forward, so that every run has the same dropout, and with another
    number before the backward, as a recompute must not depend on their state there.
    `rounding_seed`, if not 0, perturbs rounding (see `PerturbedRounding`): what differs then is noise. `switch` is
    what switches checkpointing on and off.

    An exception in forward, loss or backward ends up in the record's `error`. Raises TypeError if the model has no
    method to switch checkpointing on, ValueError if it refuses to or if a block is not a module of the model.
    """
    with prepared(model, checkpointing, switch):
        versions = {n: (p, p._version) for n, p in model.named_parameters()}
        step = _Step(own_copies(model, inputs), seed)
        own = OwnCheckpoints(model)
        with EntryCounter(model, blocks, on_recompute=lambda _: step.meter.start_recompute(), states=True) as counter:
            marker = (CallObserver if checkpointing is None else CallMarker)(blocks, step.meter)
            with own if checkpointing is None else nullcontext():
                step.run(model, loss or loss_of, counter, marker, own, rounding_seed)
        gradients = gradients_of(model, step.arguments)
        policies = [] if checkpointing is None else save_policies(model)
        written = ((name, parameter) for name, (parameter, before) in versions.items() if parameter._version != before)
        step.meter.flops.spared = sum(policy.flops for policy in policies)
        return RunRecord(
            loss=step.loss,
            gradients=gradient_copies(model),
            input_gradients={n: _dense_copy(t.grad) for n, t in _gradient_inputs(step.arguments)},
            buffers={n: b.detach().to("cpu", copy=True) for n, b in (*model.named_buffers(), *written)},
            buffers_before=step.buffers,
            outputs=step.outputs,
            unread=frozenset(f"{path}.{BATCH_COUNT}".lstrip(".") for path, _ in norms_with_momentum(model)),
            entries=counter.entries(),
            calls=step.calls,
            given_shapes=marker.given_shapes,
            switched_off=tuple(name for name, block in blocks.items() if getattr(block, FLAG, None) is False),
            without_gradient=marker.without_gradient,
            own_checkpoint=own.first if checkpointing is None else "",
            cache={name: (sizes[0], sizes[:2][-1], sizes[-1]) for name, sizes in step.cache.items()},
            written=step.written,
            changed_numbers=step.changed_numbers,
            drawn_from=step.drawn_from,
            functions=step.functions,
            packs=own.packs,
            modes=counter.modes if blocks else own.modes,
            memory=MemoryRecord(
                kept=step.meter.kept_bytes,
                best=step.meter.best_kept_bytes,
                held=step.meter.held_bytes,
                kept_by_policy={name: size for policy in policies for name, size in policy.bytes.items()},
                kept_results=tuple(kept for policy in policies for kept in policy.summaries()),
                recomputes=step.meter.recompute_bytes(gradients),
                left=step.left_bytes,
                timeline=step.meter.timeline(gradients),
                parts=step.meter.held_by_parts,
            ),
            flops=step.meter.flops,
            differing_states=counter.differing_states(),
            reentrant=own.is_reentrant,
            rng_mismatches=counter.rng_mismatches(),
            rng_moved=step.rng_moved,
            error=step.error,
        )


@contextmanager
def prepared(model: nn.Module, checkpointing: Mode | None, switch: Switch) -> Iterator[None]:
    """Keep a model ready for training steps inside the `with`, as `run_step` describes, and restore it on exit.

    Inside, it claims support for checkpointing, so that it can be switched on. Parameters that are zero or nearly so
    have random values: behind a closed gate, a lost gradient looks like a zero.
    """
    with model_state_kept(model):
        module = next(model.modules())
        if not getattr(module, CLAIM, True):
            vars(module)[CLAIM] = True
        before = {name: id(parameter) for name, parameter in model.named_parameters()}
        switch(model, checkpointing)
        if {name: id(parameter) for name, parameter in model.named_parameters()} != before:
            raise VerifyError(
                f"switching the checkpointing of {type(model).__name__} replaces modules, so that its parameters have "
                "other names: give switch= a function that leaves the modules where they are"
            )
        _open_gates(model)
        yield


def gradient_copies(model: nn.Module) -> dict[str, Tensor | None]:
    """Copy the current gradients of all parameters that require one to the CPU."""
    return {name: _dense_copy(p.grad) for name, p in model.named_parameters() if p.requires_grad}


def gradients_of(model: nn.Module, arguments: Mapping[str, Any] = MappingProxyType({})) -> list[Tensor]:
    """List the current gradients of parameters and of tensors among the arguments."""
    owners = (*model.parameters(), *(tensor for _, tensor in _gradient_inputs(arguments)))
    return [owner.grad for owner in owners if owner.grad is not None]


@dataclass(slots=True)
class _Step:
    """One forward and backward, and what was seen of them as far as they got."""

    arguments: dict[str, Any]
    seed: int
    meter: Meter = field(default_factory=Meter)
    loss: float = float("nan")
    cache: dict[str, tuple[int, ...]] = field(default_factory=dict)
    calls: dict[str, CallFacts] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    changed_numbers: tuple[str, ...] = ()
    drawn_from: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    buffers: dict[str, Contents] = field(default_factory=dict)
    outputs: dict[str, Contents] = field(default_factory=dict)
    left_bytes: int = 0
    rng_moved: bool = False
    error: StepError | None = None

    def run(
        self,
        model: nn.Module,
        loss: Callable[[Any], Tensor],
        counter: EntryCounter,
        marker: CallMarker,
        own: OwnCheckpoints,
        rounding_seed: int,
    ) -> None:
        part = StepPart.FORWARD
        global_tensors = _global_tensors(model)
        note_changes: Callable[[], None] | None = None
        devices = devices_of(model)
        self._measure_caches()
        seed_all(self.seed)
        try:
            # a run that measures rounding needs no figures of cost, which take longer than the step
            with PerturbedRounding(rounding_seed) if rounding_seed else self.meter:
                with torch.enable_grad(), marker:
                    given, named = call_arguments(self.arguments)
                    self.meter.on_operator = own.look
                    output = model(*given, **named)
                    self.meter.on_operator = None  # a loss function may checkpoint
                    part = StepPart.LOSS
                    value = scalar(loss(output))
                    self.outputs = dict(outputs_of(output))
                    del output
                self.loss = float(value.detach())
                self.functions = own_functions(value)
                self._measure_caches()
                self.buffers = {name: contents_of(buffer) for name, buffer in model.named_buffers()}
                note_changes = self._watch_changes(model, global_tensors)
                seed_all(self.seed + 1)
                before, others = generator_state(devices), GeneratorStates.now()
                part = StepPart.BACKWARD
                counter.start_backward()
                own.start_backward()
                self.meter.start_backward(value)
                value.backward()  # type: ignore[no-untyped-call]
            del value
            self.left_bytes = self._bytes_left(gradients_of(model, self.arguments))
            self.rng_moved = before != generator_state(devices) or others.drawn_since()
            self._measure_caches()
            note_changes()
            if isinstance(marker, CallObserver):
                self.calls = marker.facts()
        except Exception as error:  # a step that breaks is a result, not a mistake of the caller
            self.error = StepError.of(part, error)
            self._measure_caches()
            if note_changes is not None:
                note_changes()

    def _bytes_left(self, gradients: list[Tensor]) -> int:
        """Return the bytes alive besides the gradients, after collecting reference cycles if there are many."""
        left = self.meter.left_bytes(gradients)
        if left > NEGLIGIBLE * self.meter.kept_bytes:
            gc.collect()
            left = self.meter.left_bytes(gradients)
        return left

    def _watch_changes(self, model: nn.Module, before_forward: Mapping[str, Contents]) -> Callable[[], None]:
        """Note what inputs and modules hold now; return a function that notes what has changed since.

        Of global variables, only those count that the forward changed too and the backward did not set back: the
        forward fills a pool, and the backward empties it.
        """
        now_global = _global_tensors(model).items()
        changed_global = {name: now for name, now in now_global if differ(before_forward.get(name, []), now)}
        contents, numbers, generators = self._contents(model), _numbers(model), list(own_generators(model))
        states = [repr(state_of(generator)) for _, generator in generators]

        def note() -> None:
            contents_now, numbers_now = self._contents(model), _numbers(model)
            self.written = tuple(n for n, before in contents.items() if differ(before, contents_now.get(n)))
            global_now = _global_tensors(model)
            self.written += tuple(
                name
                for name, before in changed_global.items()
                if differ(before, now := global_now.get(name, [])) and differ(before_forward.get(name, []), now)
            )
            self.changed_numbers = tuple(n for n, before in numbers.items() if numbers_now.get(n) != before)
            self.drawn_from = tuple(
                name for (name, own), state in zip(generators, states, strict=True) if repr(state_of(own)) != state
            )

        return note

    def _contents(self, model: nn.Module) -> dict[str, Contents]:
        """Return the contents of the inputs, and of tensors that are plain attributes of modules."""
        contents = {input_name(name): contents_of(value) for name, value in self.arguments.items()}
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if type(value) is Tensor:
                    contents[f"{path}.{name}" if path else name] = contents_of(value)
        return contents

    def _measure_caches(self) -> None:
        for name, value in self.arguments.items():
            if is_cache(value):
                self.cache[name] = (*self.cache.get(name, ()), _cache_size(value))


def _global_tensors(model: nn.Module) -> dict[str, Contents]:
    """Return the contents of tensors in global variables, lists and dictionaries of the files that define modules."""
    contents: dict[str, Contents] = {}
    for file in dict.fromkeys(type(module).__module__ for module in model.modules()):
        if file in sys.modules and file.partition(".")[0] not in _LIBRARIES:
            for name, value in list(vars(sys.modules[file]).items()):
                values = value.values() if type(value) is dict else value if type(value) is list else [value]
                if held := [item for item in values if type(item) is Tensor]:
                    contents[f"{file}.{name}"] = contents_of(held)
    return contents


def _numbers(model: nn.Module) -> dict[str, int | float]:
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float)
    }


def _cache_size(cache: Any) -> int:
    """Return the length of a cache in positions, or else the number of elements in its tensors."""
    try:
        length = int(cache.get_seq_length())
    except Exception:  # recurrent caches lack the method, or raise in it
        length = 0
    return length or sum(tensor.numel() for tensor in hidden_tensors(cache, CACHE_DEPTH))


def own_copies(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the arguments of a model, so that a step may write into them.

    Raises:
        VerifyError: an argument cannot be copied.
    """
    copies = {}
    for name, value in arguments.items():
        try:
            copies[name] = own_copy(value)
        except Exception as error:  # whatever copying an object of the caller raises
            raise VerifyError(
                f"the input {name} of {type(model).__name__} cannot be copied, and each run gets a copy: "
                f"{error_line(error)}"
            ) from error
    return copies


def own_copy(value: Any) -> Any:
    """Copy a value; all tensors in the copy are leaves."""
    found = (*tensors(value), *hidden_tensors(value, CACHE_DEPTH))
    leaves = {id(t): t.detach().clone().requires_grad_(t.requires_grad) for t in {id(t): t for t in found}.values()}
    return leaves[id(value)] if isinstance(value, Tensor) else copy.deepcopy(value, dict(leaves))


def _gradient_inputs(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among the arguments that require gradient; those in containers are numbered."""
    for name, value in arguments.items():
        for number, tensor in enumerate(tensors(value)):
            if tensor.requires_grad and tensor.is_leaf:
                yield name if tensor is value else f"{name}[{number}]", tensor


def _dense_copy(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    dense = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
    return dense.to("cpu", copy=True)


def _open_gates(model: nn.Module) -> None:
    """Give every parameter that is zero, or nearly so, small random values, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            quantised = any(inner.itemsize < 2 for inner in inner_tensors(parameter))
            if not parameter.is_floating_point() or quantised or not parameter.numel():
                continue  # not a gate
            if float(parameter.abs().max()) < _GATE:
                values = torch.randn(parameter.shape, generator=generator) * 0.02
                parameter.add_(values.to(parameter.device, parameter.dtype))
