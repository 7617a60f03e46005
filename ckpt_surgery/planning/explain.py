"""`explain`: what a training step of a model keeps for its backward, and where its peak is, without running it."""

from __future__ import annotations

import contextlib
import copy
import linecache
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.errors import NotOnShapes, PlanningError
from ckpt_surgery.measure.arguments import Inputs, call_arguments, checked_inputs
from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.measure.loss import loss_of, scalar
from ckpt_surgery.measure.own_checkpoints import OURS, TORCH
from ckpt_surgery.measure.restore import without_gradients
from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION
from ckpt_surgery.planning.allocations import AllocationKind, StepAllocations
from ckpt_surgery.planning.devices import block_bytes
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.figures import Holder, MemoryTimeline, Peak
from ckpt_surgery.planning.lora import is_mostly_frozen, linear_layers
from ckpt_surgery.planning.model_copy import Copies
from ckpt_surgery.planning.roofline import seconds_of
from ckpt_surgery.planning.shapes import DECIDED_BY_VALUES, ShapesOnly, UsesOriginal, ValuesForNumpy, shapes_of
from ckpt_surgery.planning.sharding import held_states, sharded
from ckpt_surgery.planning.states import bytes_of
from ckpt_surgery.planning.step_meter import run_metered
from ckpt_surgery.planning.training import ALONE, TrainingSetup
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.surgery.surgery import surgeries_in
from ckpt_surgery.text import error_line
from ckpt_surgery.torch_names import FakeTensor

_MOST_COPIED_BYTES = 2**31
"""The most bytes of parameters in a model that is copied to run with data."""


def explain(
    model: nn.Module,
    inputs: Inputs,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: str = "none",
    ranks: int = 1,
    sharding: str | None = None,
    device: str | None = None,
) -> Explanation:
    """Explain what one training step of `model` keeps for the backward, what makes it, and where the peak is.

    The step runs on shapes: nothing is computed, no weights are needed, and an 8B model takes seconds. The model may
    be real or hold no data (built inside `planning.shapes.ShapesOnly()`), checkpointed or not, wrapped or not, in
    training mode or not; it is read and never changed. A step that reads values which depend on weights cannot run on
    shapes: a copy of the model then runs it with data, if the model holds data in at most 2 GiB of parameters, and
    `assumptions` says so. Sizes are those of this machine's operators, exact to the byte for what is kept. With a CUDA
    `device`, the peak includes the inputs, cuBLAS's workspace and what torch's allocator adds to each tensor of the
    step. Other workspace inside operators is not counted.

    Args:
        model: the model as it stands.
        inputs: the arguments of its forward, by name, by position, or as a single tensor. Of float tensors only shape
            and dtype matter; integer and bool tensors keep their values.
        loss: turns the model's output into a scalar tensor (default: the output's own `loss`, else a weighted sum of
            its floats).
        optimizer: whose state is counted: one of `ckpt_surgery.planning.training.Optimizer`.
        ranks: the number of ranks that the model is divided among; the explanation is then that of one rank.
        sharding: what the ranks divide: "fsdp" (FSDP2, each block by itself), "zero1", "zero2" or "zero3" (DeepSpeed).
        device: whose time and workspace are estimated, as in `plan`; None for neither.

    Returns:
        The explanation, in bytes, FLOPs and seconds. Print it, or use `to_html()` or `to_json()`.

    Raises:
        PlanningError: the step cannot run on shapes, and the message says why and where; or an option is not one of
            those above.
        VerifyError: `inputs` is not a mapping, a tuple, a list or a tensor.
    """
    training = TrainingSetup.of(optimizer, ranks, sharding, device)
    shapes = ShapesOnly()
    with random_state_kept():
        copied = without_values(shapes_of(model, shapes, shapes.copies))
        try:
            step, drawn = metered(copied, inputs, shapes, loss)
        except NotOnShapes as error:
            copied, step = _with_data(model, inputs, loss, error)
            said = f"{error.reason}: so a copy of the model ran it with data."
            return replace(explanation_of(copied, step, 0, training), assumptions=(said,))
    return explanation_of(copied, step, drawn, training)


def _with_data(
    model: nn.Module, inputs: Inputs, loss: Callable[[Any], Tensor] | None, why: NotOnShapes
) -> tuple[nn.Module, StepAllocations]:
    """Copy a model that holds data, and meter a step of the copy. Raises `why` if it cannot be copied or run."""
    parameters = list(model.parameters())
    no_data = any(isinstance(each, FakeTensor) or each.is_meta for each in parameters)
    if no_data or held_bytes(parameters) > _MOST_COPIED_BYTES:
        raise why
    copies: dict[int, Any] = {}
    with without_gradients(model):
        try:
            copied = without_values(Copies(copies).model(model), on_host=False)
            arguments = call_arguments(copy.deepcopy(checked_inputs(inputs)))
            step = run_metered(copied, arguments, _scalar_loss(loss, copies))
        except Exception as error:  # whatever a step of the model raises
            raise why from error
        if any(parameter.grad is not None for parameter in parameters):
            raise PlanningError(_original_used(type(model).__name__))
    copied.zero_grad()
    return copied, step


def _scalar_loss(loss: Callable[[Any], Any] | None, copies: dict[int, Any]) -> Callable[[Any], Tensor]:
    """Return the loss for a step of a copy, as a function of the output."""
    copied = Copies(copies).function(loss or loss_of)
    return lambda output: scalar(copied(output))


def _original_used(name: str, where: str = "") -> str:
    return (
        f"a step of a copy of {name} uses parameters of the model itself{where}: a function reaches them through a "
        "global variable or a container of its own; give it what it uses as a default (`lambda x, block=block: ...`)"
    )


def metered(
    model: nn.Module, inputs: Inputs, shapes: ShapesOnly, loss: Callable[[Any], Tensor] | None = None
) -> tuple[StepAllocations, int]:
    """Meter a step of a model that holds no data, and count the operators that were given drawn values.

    Leaves no gradients on the model. Raises PlanningError.
    """
    drawn_before = shapes.drawn
    arguments = shapes.inputs(checked_inputs(inputs))
    try:
        with shapes, ValuesForNumpy(), not_logged():
            step = run_metered(model, call_arguments(arguments), _scalar_loss(loss, shapes.copies))
    except UsesOriginal as error:
        raise PlanningError(_original_used(type(model).__name__, _place_in_model(error))) from error
    except Exception as error:
        raise not_on_shapes(f"a step of {type(model).__name__}", error) from error
    finally:
        for parameter in model.parameters():
            parameter.grad = None
    return step, shapes.drawn - drawn_before


def explanation_of(
    model: nn.Module, step: StepAllocations, drawn: int, training: TrainingSetup = ALONE
) -> Explanation:
    """Explain a metered step, on one rank if the training has several."""
    blocks = find_blocks(model)
    attributes = [vars(block.module) for block in blocks]
    checkpointed = [  # by their library's switch, or by a surgery
        bool(each.get(FLAG, False)) or isinstance(each.get("forward"), BlockForward)
        for each in attributes
        if each.get(FUNCTION) is not None
    ]
    saved: Counter[str] = Counter()  # bytes that surgeries kept in the last step, by the names in `save`
    for policy in (policy for surgery in surgeries_in(model) for policy in surgery.policies):
        for (name, _), count in policy.kept.items():
            saved[name] += count.bytes
    step = sharded(step, model, [block.name for block in blocks], training)
    parameters, optimizer = held_states(model.parameters(), training)
    buffers = held_bytes(model.buffers())
    on_cuda = training.device is not None and training.device.workspace > 0
    counted, input_bytes = step, step.input_bytes if on_cuda else 0
    if on_cuda:  # tensors take what torch's CUDA allocator rounds them up to
        counted = replace(step, allocations=tuple(replace(a, bytes=block_bytes(a.bytes)) for a in step.allocations))
    frozen = [] if training.sharding else linear_layers(model, frozen=True)
    workspace = training.device.workspace if training.device and step.forward_flops else 0
    return Explanation(
        model=type(model).__name__,
        blocks=len(blocks),
        checkpointed=sum(checkpointed),
        parameter_bytes=parameters,
        buffer_bytes=buffers,
        gradient_bytes=sum(each.bytes for each in step.allocations if each.kind is AllocationKind.GRADIENT),
        optimizer_bytes=optimizer,
        kept_bytes=step.kept_bytes,
        peak=Peak.of(counted, parameters + buffers + optimizer + input_bytes + workspace),
        holders=Holder.grouped(each for each in step.allocations if each.kind is AllocationKind.KEPT),
        timeline=MemoryTimeline.of(step),
        forward_flops=step.forward_flops,
        backward_flops=step.backward_flops,
        drawn=drawn,
        seconds=seconds_of(step.work, training.device) if training.device else 0.0,
        input_bytes=input_bytes,
        workspace_bytes=workspace,
        frozen_bytes=held_bytes(layer.weight for *_, layer in frozen),
        adapted=is_mostly_frozen(model),
        saved=dict(saved),
    )


def not_on_shapes(what: str, error: BaseException) -> NotOnShapes:
    """Describe what cannot run on shapes, the line that stopped it, and what to do if the line reads values."""
    where = _place_in_model(error)
    if isinstance(error, DECIDED_BY_VALUES):
        return NotOnShapes(
            f"{what} cannot run on shapes, because it reads values that depend on weights{where}",
            "`ckpt_surgery verify` measures a tiny model with data instead",
        )
    return NotOnShapes(f"{what} cannot run on shapes{where}: {error_line(error)}")


def _place_in_model(error: BaseException) -> str:
    """Return the line of a model that an error came from, as a clause; empty if there is none."""
    places = ((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))
    others = (TORCH, OURS, contextlib.__file__, "<")
    model_code = [(file, line) for file, line in places if not file.startswith(others)]
    if not model_code:
        return ""
    file, line = model_code[-1]
    return f" ({Path(file).name}, line {line}: `{linecache.getline(file, line).strip()}`)"


@contextmanager
def not_logged() -> Iterator[None]:
    """Keep torch from logging the traceback of each error on shapes: callers handle it, or raise their own."""
    log = logging.getLogger(FakeTensor.__module__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Count the bytes of tensors, each tensor once."""
    return sum(map(bytes_of, {id(tensor): tensor for tensor in tensors}.values()))


def without_values(model: nn.Module, *, on_host: bool = True) -> nn.Module:
    """Return the model, still wrapped, without the self-check and, with `on_host`, without copies in host memory."""
    for surgery in surgeries_in(model):
        if surgery.checkpointing is not None:
            surgery.change(self_check="never")
    if on_host:
        on_host_without_data(model)
    return model


def on_host_without_data(model: nn.Module) -> None:
    """Make the offload of a model that holds no data allocate nothing in host memory."""
    for surgery in surgeries_in(model):
        if surgery.offloader is not None:
            surgery.offloader.transport = HostWithoutData()


class HostWithoutData(HostTransport):
    """A transport without host memory: what moves there comes back as a new tensor of its shape."""

    def put(self, source: Tensor) -> Any:
        """Return a function that makes a tensor like `source`."""
        return partial(source.new_empty(0).new_empty_strided, source.shape, source.stride())

    def finish(self, host_copy: Any) -> None:
        """Do nothing: no copy is under way."""

    def start(self, host_copy: Any) -> Any:
        """Make a new tensor of that shape on the device."""
        return host_copy()

    def get(self, device_copy: Any) -> Any:
        """Return the tensor that `start` made."""
        return device_copy
