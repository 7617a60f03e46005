"""Shared parts of the scripts in `cases`: a training loop, and the numbers that show a fault without any tool."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Make = Callable[[], tuple[nn.Module, Any]]
"""Builds a model, as a user trains it, and its batch: the keyword arguments of its forward."""
Mode = Literal["non_reentrant", "reentrant"]
Switch = Callable[[nn.Module, str | None], None]
"""Switches checkpointing to a mode, `non_reentrant` or `reentrant`, or off with None."""
CURE = "CKPT_FAULTS_CURE"
"""The variable that has `wrap_blocks` applied to every model before its numbers are taken."""
STEPS = 20
SAVES_LITTLE = 0.9
"""The share of its bytes that a model keeps at least, where checkpointing saves next to nothing."""
ROUNDING = 1e-4
"""The relative error of gradients in float32 that is no fault."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """A number that shows a fault: `quantity` was `measured`, and `right` is the right value."""

    quantity: str
    measured: float | str
    right: float | str
    shown: bool


class Switched(nn.Module):
    """A model with transformers' methods to switch checkpointing, which starts switched on."""

    gradient_checkpointing = True
    use_reentrant = False

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None) -> None:
        """Switch checkpointing on."""
        self.gradient_checkpointing = True
        self.use_reentrant = (gradient_checkpointing_kwargs or {}).get("use_reentrant", self.use_reentrant)

    def gradient_checkpointing_disable(self) -> None:
        """Switch checkpointing off."""
        self.gradient_checkpointing = False


def modes_of(model: nn.Module) -> Sequence[Mode]:
    """Return the mode in which a model is trained; both where that cannot be told."""
    inner = getattr(model, "module", model)
    if isinstance(inner, Switched):
        return ("reentrant",) if inner.use_reentrant else ("non_reentrant",)
    return ("non_reentrant", "reentrant")


def loss_of(output: Any) -> Tensor:
    """Return the loss in an output: its `loss`, else the mean square of its first tensor."""
    loss = getattr(output, "loss", None)
    if loss is None:
        tensor = output if isinstance(output, Tensor) else output[0]
        loss = tensor if tensor.dim() == 0 else tensor.float().square().mean()
    return loss


def train(make: Make, steps: int = STEPS, lr: float = 0.05) -> list[float]:
    """Train with SGD on one batch, print the loss of each step, and return the losses."""
    model, batch = make()
    cured(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = loss_of(model(**batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print("step", step, "loss", losses[-1], flush=True)
    return losses


def switch_off(model: nn.Module) -> None:
    """Switch checkpointing off by the method of transformers."""
    inner: Any = getattr(model, "module", model)
    inner.gradient_checkpointing_disable()


def gradients(make: Make, off: Callable[[nn.Module], None] = switch_off, *, tolerance: float = ROUNDING) -> Symptom:
    """Compare the gradients of a first step to those without checkpointing.

    The error is the largest of any parameter, relative to its largest entry; a lost gradient has the error 1.
    """
    right = _first_gradients(make, off)
    measured = _first_gradients(make, cured)
    error = max(_error(measured.get(name), gradient) for name, gradient in right.items())
    return Symptom("largest error of a gradient", error, 0.0, error > tolerance)


def memory(make: Make, off: Callable[[nn.Module], None] = switch_off) -> Symptom:
    """Compare the bytes that a forward saves for its backward to those without checkpointing."""
    share = _kept(make, cured) / _kept(make, off)
    return Symptom("bytes kept, of those without checkpointing", share, SAVES_LITTLE, share > SAVES_LITTLE)


def forwards(make: Make, chosen: Callable[[nn.Module], bool], right: float) -> Symptom:
    """Count how often the chosen modules run in a step: once each, and once more where they are recomputed."""
    model, batch = make()
    modules = [module for module in model.modules() if chosen(module)]
    computed: list[int] = []
    for module in modules:
        module.register_forward_pre_hook(lambda *_: computed.append(1))
    cured(model)
    loss_of(model(**batch)).backward()  # type: ignore[no-untyped-call]
    return number("forwards of each", len(computed) / len(modules), right)


def error(run: Callable[[], object]) -> Symptom:
    """Run a training that ends with an error, or does not."""
    try:
        run()
    except Exception as raised:
        return Symptom("error", f"{type(raised).__name__}: {raised}".split("\n")[0], "none", True)
    return Symptom("error", "none", "none", False)


def number(quantity: str, measured: float, right: float, tolerance: float = ROUNDING) -> Symptom:
    """Compare any number to the right one."""
    return Symptom(quantity, measured, right, abs(measured - right) > tolerance * max(abs(right), 1e-12))


def cured(model: nn.Module) -> None:
    """Apply `wrap_blocks` where the benchmark asks for the cure; else leave the model as its script has it."""
    if os.environ.get(CURE):
        from ckpt_surgery import wrap_blocks

        wrap_blocks(getattr(model, "module", model))


def _first_gradients(make: Make, prepare: Callable[[nn.Module], None]) -> dict[str, Tensor]:
    model, batch = make()
    prepare(model)
    torch.manual_seed(0)
    loss_of(model(**batch)).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _error(measured: Tensor | None, right: Tensor) -> float:
    if measured is None:
        return 1.0
    return float((measured - right).abs().max() / right.abs().max().clamp_min(1e-12))


def _kept(make: Make, prepare: Callable[[nn.Module], None]) -> int:
    model, batch = make()
    prepare(model)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage that is freed would lend its address to another

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model(**batch))
    return sum(sizes.values())
