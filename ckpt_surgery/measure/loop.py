"""Judge whether a training loop computes the same with checkpointing, beyond a single step.

The loops are optimizer steps with an evaluation between, accumulated gradients, two forwards before a backward, a
retained graph, and adapters on a frozen model. Each is compared with the same loop without checkpointing: by
gradients, losses, and memory that grows or is no longer saved.

Running the model takes the time: where one loop can continue from another, the two share a training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.measure.compare import Floor
from ckpt_surgery.measure.cost import LEAST_SAVING, WORTH_SAVING
from ckpt_surgery.measure.kinds import FaultKind, LoopKind, SkipKind
from ckpt_surgery.measure.record import NEGLIGIBLE, RunRecord
from ckpt_surgery.measure.results import Fault, LevelVerdict, Mode, Skip
from ckpt_surgery.measure.setup import Setup
from ckpt_surgery.measure.training import Training, TrainingJudge, are_samples_alike, level_verdict
from ckpt_surgery.runtime.tools.containers import tensors

_STEP = 0.01
"""The change that the first optimizer step makes to the parameter with the largest gradient."""
_ADAPTERS = 2
"""The adapters in each block."""
_RANK, _SCALE = 4, 0.05
"""The inner size of an adapter, and the scale of its random entries: zeros would hide lost gradients."""

_LoopKinds = tuple[LoopKind, ...]


class LoopLevel:
    """The loops without checkpointing, run once each and compared with every mode.

    `record` is one step without checkpointing, and `noise` measures what rounding changes in it.
    """

    def __init__(self, setup: Setup, record: RunRecord, noise: Callable[[], Mapping[str, Floor]]) -> None:
        self._setup = setup
        self._record = record
        gradients = (gradient for gradient in record.gradients.values() if gradient is not None and gradient.numel())
        largest = max((float(gradient.abs().max()) for gradient in gradients), default=0.0)
        self._rate = _STEP / (largest or 1.0)
        self._leading: Sequence[RunRecord] = ()
        """The first training without checkpointing: the optimizer of every other steps with its gradients."""
        self._trainings: Mapping[_LoopKinds, Callable[[Training], None]] = {
            (LoopKind.ACCUMULATION, LoopKind.STEPS): self._accumulation_and_steps,
            (LoopKind.STEPS,): self._steps,
            (LoopKind.TWO_FORWARDS, LoopKind.RETAINED_GRAPH): self._two_forwards_and_retained_graph,
            (LoopKind.RETAINED_GRAPH,): self._retained_graph,
            (LoopKind.ADAPTERS,): self._adapters,
        }
        """By the loops that each covers, in order. The second runs alone if the shared training ends before it."""
        self._shared: dict[tuple[LoopKind, Mode | None, int], Training] = {}
        """The parts of trainings that their kind of loop has not asked for yet."""
        self._plain_growth = 0  # the bytes that the last step leaves behind without checkpointing
        self._plain_kept = 0  # the bytes that its forward keeps
        self._judges = {
            kind: TrainingJudge("loop", kind, partial(self._train, kind), setup.tolerance, likely=noise)
            for kind in LoopKind
        }

    def verdict(self, mode: Mode, step: RunRecord) -> LevelVerdict:
        """Judge this mode in each loop in which the model trains without checkpointing.

        `step` is one step in this mode.
        """
        self._shared.clear()
        results = [self._impossible(kind, step) or judge.judge(mode) for kind, judge in self._judges.items()]
        return level_verdict([self._memory_fault(result, step) or result for result in results])

    def _impossible(self, kind: LoopKind, step: RunRecord) -> Skip | None:
        """Return why a kind of loop would show nothing about this model and these inputs; None if it would."""
        if kind is LoopKind.TWO_FORWARDS and are_samples_alike(self._setup.inputs):
            return Skip(("loop",), SkipKind.SAME_SAMPLES)
        if kind is LoopKind.RETAINED_GRAPH and any(each.selective for each in step.entries.values()):
            return Skip(("loop",), SkipKind.ONE_BACKWARD)
        if kind is LoopKind.ADAPTERS and not self._places_of_adapters():
            return Skip(("loop",), SkipKind.NO_LINEAR_LAYER)
        return None

    def _memory_fault(self, result: Training | Fault | Skip, step: RunRecord) -> Fault | None:
        """Return a fault if the loop computes the same, but leaves more behind in each step, or the last saves less.

        `step` is the first one, which the last one is compared with.
        """
        if not isinstance(result, Training) or not result.alive:
            return None
        kept = self._record.memory.kept
        if result.growth - self._plain_growth > NEGLIGIBLE * kept:
            return Fault(FaultKind.GROWING_BYTES, details={"reference": self._plain_growth, "found": result.growth})
        first, last = kept - step.memory.kept, self._plain_kept - result.kept[-1]
        if first > WORTH_SAVING * kept and last < LEAST_SAVING * first:
            return Fault(FaultKind.SAVING_LOST, details={"reference": self._plain_kept, "found": result.kept[-1]})
        return None

    def _train(self, kind: LoopKind, mode: Mode | None, rounding_seed: int) -> Training:
        """Return the training for one kind of loop: its part of a shared training if that got so far."""
        key = kind, mode, rounding_seed
        for kinds in self._trainings:
            if kind in kinds and key not in self._shared:
                parts = _parts(self._run(kinds, mode, rounding_seed), kinds)
                self._shared |= {(part, mode, rounding_seed): training for part, training in parts.items()}
        return self._shared.pop(key)

    def _run(self, kinds: _LoopKinds, mode: Mode | None, rounding_seed: int) -> Training:
        steps, metered = self._trainings[kinds], LoopKind.STEPS in kinds
        training = Training.run(self._setup, mode, steps, metered=metered, rounding_seed=rounding_seed)
        if metered and mode is None and not rounding_seed:
            self._plain_growth, self._plain_kept = training.growth, (training.kept or [0])[-1]
            self._leading = self._leading or training.steps
        return training

    def _accumulation_and_steps(self, training: Training) -> None:
        """Run `_steps`; the first one adds its gradients to those of an earlier backward."""
        for name, parameter in training.setup.model.named_parameters():
            gradient = self._record.gradients.get(name)
            if gradient is not None and parameter.requires_grad:
                parameter.grad = gradient.to(parameter.device, copy=True)
        self._steps(training)

    def _steps(self, training: Training) -> None:
        """Run optimizer steps from the same parameters in every training, so that rounding does not add up."""
        model = training.setup.model
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=self._rate)
        for number in range(3):  # growth is measured from the second to the third
            with training.metered() if number else nullcontext():
                training.backward(training.forward())
                for record in self._leading[number : number + 1]:
                    record.put_gradients(model)
                optimizer.step()
                optimizer.zero_grad()
            training.measure()
            if not number:
                training.evaluate()

    def _two_forwards_and_retained_graph(self, training: Training) -> None:
        first, second = training.forward(), training.forward()
        training.backward(first + second, retain=True)
        training.setup.model.zero_grad()
        training.backward(second)

    def _retained_graph(self, training: Training) -> None:
        loss = training.forward()
        training.backward(loss, retain=True)
        training.backward(loss)

    def _adapters(self, training: Training) -> None:
        """Freeze the model, and train adapters on some linear layers of each block.

        What goes into the blocks requires gradient, as is usual with adapters: the outputs of embeddings, or the
        inputs of the model.
        """
        setup = self._setup
        setup.model.requires_grad_(False)
        generator = torch.Generator().manual_seed(setup.seed)
        for holder, name in self._places_of_adapters():
            setattr(holder, name, Adapted(getattr(holder, name), generator))

        def require_gradient(_module: nn.Module, _arguments: object, output: Any) -> None:
            for tensor in tensors(output):
                if tensor.is_leaf and tensor.is_floating_point():
                    tensor.requires_grad_()

        for module in setup.model.modules():
            if isinstance(module, nn.Embedding):
                module.register_forward_hook(require_gradient)
        training.backward(training.forward(inputs_require_gradient=True))

    def _places_of_adapters(self) -> dict[tuple[nn.Module, str], None]:
        """Find linear layers of each block, each as its parent module and its name there."""
        places: dict[tuple[nn.Module, str], None] = {}
        for block in self._setup.blocks.values():
            pairs = ((holder, *child) for holder in block.module.modules() for child in holder.named_children())
            linear = (
                (h, name) for h, name, child in pairs if type(child) is nn.Linear or type(child).__name__ == "Conv1D"
            )
            places |= {} if block.inside else dict.fromkeys(islice(linear, _ADAPTERS))
        return places


def _parts(training: Training, kinds: _LoopKinds) -> dict[LoopKind, Training]:
    """Split a training by kind of loop: its first backward is of the first kind, all others of the second.

    A kind that the training does not reach is left out.
    """
    if len(kinds) == 1:
        return {kinds[0]: training}
    first, second = replace(training, steps=training.steps[:1], alive=[]), replace(training, steps=training.steps[1:])
    parts = zip(kinds, (first, second), strict=True)
    return {kind: part for kind, part in parts if part.steps}


class Adapted(nn.Module):
    """A frozen linear layer plus a product of two small matrices that train, as fine-tuning adds them.

    `base` is an `nn.Linear`, or a layer that has its weight as (inputs, outputs), as GPT-2's `Conv1D` does. Inputs are
    (..., inputs), results (..., outputs).
    """

    def __init__(self, base: nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        weight: Tensor = base.weight  # type: ignore[assignment]
        first, second = weight.shape
        inputs, outputs = (second, first) if isinstance(base, nn.Linear) else (first, second)
        down, up = (torch.randn(shape, generator=generator) * _SCALE for shape in ((_RANK, inputs), (outputs, _RANK)))
        self.down = nn.Parameter(down.to(weight.device, weight.dtype))
        self.up = nn.Parameter(up.to(weight.device, weight.dtype))

    @property
    def weight(self) -> Tensor:
        """The weight of the frozen layer, for code that reads a linear layer's weight."""
        weight: Tensor = self.base.weight  # type: ignore[assignment]
        return weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of the frozen layer."""
        bias: Tensor | None = self.base.bias  # type: ignore[assignment]
        return bias

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.base(hidden)
        return result + hidden.to(self.down.dtype) @ self.down.T @ self.up.T
