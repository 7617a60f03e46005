"""Does a step take what `explain` says, and is a plan as fast as the best `every_n` of the same memory?

Steps on a CUDA GPU: models of one and eight billion parameters, a mixture of experts and a vision model, in small
batches and large ones, with and without checkpointing, adapters, weights of 4 bits, a fused loss and `long_context`.
What is told may be under what is measured by 1 %, and over by 3 %. Then one plan, held against every n-th block at its
budget. Prints figures and targets; writes json. With --toy on the processor, where bytes are those of the meter.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.device import GIGABYTE, Device, wanted_device
from benchmarks.figures import Figure, Target, finish, gpu_parser
from benchmarks.progress import NO_ROOM, Kept, Progress, lacks_room
from ckpt_surgery.text import plural

if TYPE_CHECKING:
    from torch import nn

    from ckpt_surgery.planning.target import ReleasedModel

UNDER, OVER = Target(1.0), Target(3.0)
"""Per cent: a prediction that is too low ends a training that was said to fit."""
NO_SLOWER = Target(1.02)
EVERY = (1, 2, 3, 4)
LORA = 16


def config_of(architecture: str, layers: int, hidden: int, inner: int, heads: int, **more: Any) -> Mapping[str, Any]:
    """Return the configuration of a model; one for text has tokens, and positions for long ones."""
    text = {"vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 131072}
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner}
    names = {"architectures": [architecture], "num_attention_heads": heads}
    return {**names, **sizes, **(text if architecture.endswith("ForCausalLM") else {}), **more}


_EXPERTS = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
_QWEN = {"model_type": "qwen3_moe", "vocab_size": 151936, "num_key_value_heads": 4, **_EXPERTS}
MODELS = {
    "Llama 1B": config_of("LlamaForCausalLM", 16, 2048, 8192, 32, model_type="llama", tie_word_embeddings=True),
    "Llama 8B": config_of("LlamaForCausalLM", 32, 4096, 14336, 32, model_type="llama", tie_word_embeddings=False),
    "Qwen3-MoE, 8 layers": config_of("Qwen3MoeForCausalLM", 8, 2048, 6144, 32, **_QWEN),
    "ViT-L": config_of("ViTForImageClassification", 24, 1024, 4096, 16, model_type="vit", num_labels=1000),
}
"""Configurations by the names in the figures."""
TOY: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "vocab_size": 300,
    "num_labels": 10,
    "image_size": 32,
}
"""What a dry run puts in the place of sizes that a configuration names."""


@dataclass(frozen=True, slots=True)
class Case:
    """One step: the model, the thousands of tokens of each text in its batch (or its images), and the changes."""

    model: str
    thousands: int = 0
    images: int = 1
    lora: bool = False
    checkpointed: bool = False
    fused_loss: bool = False
    four_bits: bool = False
    texts: int = 1
    long_context: bool = False

    def __str__(self) -> str:
        size = f"{self.thousands}K" if self.thousands else plural(self.images, "image")
        said = {
            f"batch {self.texts}": self.texts > 1,
            "LoRA": self.lora,
            "4 bits": self.four_bits,
            "checkpointed": self.checkpointed,
            "fused loss": self.fused_loss,
            "long_context": self.long_context,
        }
        return ", ".join([self.model, size, *(word for word, holds in said.items() if holds)])


CASES = (
    Case("Llama 1B", 4),
    Case("Llama 1B", 4, checkpointed=True),
    Case("Llama 1B", 16, checkpointed=True),
    Case("Llama 1B", 64, checkpointed=True, fused_loss=True),
    Case("Llama 8B", 4, checkpointed=True),
    Case("Llama 8B", 16, checkpointed=True, fused_loss=True),
    Case("Llama 8B", 4, lora=True),
    Case("Llama 8B", 64, lora=True, checkpointed=True, fused_loss=True),
    Case("Llama 8B", 32, lora=True, long_context=True),
    Case("Qwen3-MoE, 8 layers", 4),
    Case("Qwen3-MoE, 8 layers", 16, checkpointed=True),
    Case("ViT-L", images=128),
    Case("ViT-L", images=128, checkpointed=True),
    Case("Llama 1B", 1, texts=16),
    Case("Llama 1B", 1, texts=32, checkpointed=True),
    Case("Llama 8B", 4, lora=True, four_bits=True, checkpointed=True),
    Case("Llama 8B", 2, texts=16, lora=True, four_bits=True, checkpointed=True, fused_loss=True),
    Case("ViT-L", images=1),
    Case("ViT-L", images=512, checkpointed=True),
)
PLANNED = Case("Llama 1B", 16)
_PLAN = f"a plan for {PLANNED}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    parser = gpu_parser("plan_on_gpu", __doc__)
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="timed steps of each way (default: 5)")
    options = parser.parse_args(arguments)
    if (device := wanted_device("plan_on_gpu", toy=options.toy)) is None:
        return 2
    progress = Progress("plan_on_gpu", options.out, lambda kept: figures(kept, device), device)
    for case in CASES:
        made = progress.measure(str(case), partial(told_and_measured, case, device))
        if made and not made["measured"]:
            progress.note(f"{case}: {NO_ROOM} for such a step")
    progress.measure(_PLAN, lambda: plan_and_every(device, options.steps))
    return finish(progress.figures, progress.text(), options.out)


def figures(kept: Kept, device: Device) -> list[Figure]:
    """Make all figures of the measurements so far."""
    measured: list[Figure] = []
    for case in CASES:
        if kept.get(str(case)):
            measured += case_figures(case, **kept[str(case)])
    return measured + (plan_figures(kept[_PLAN], device) if kept.get(_PLAN) else [])


def case_figures(case: Case, told: int, measured: int) -> Iterator[Figure]:
    """Return the peak of a step as it is told and as it is; nothing of the second where it had no room."""
    yield Figure(f"{case}: told", (told / GIGABYTE,), "GB")
    if measured:
        yield Figure(f"{case}: measured", (measured / GIGABYTE,), "GB")
        yield Figure(f"{case}: under by", (100 * max(1 - told / measured, 0.0),), "%", UNDER)
        yield Figure(f"{case}: over by", (100 * max(told / measured - 1, 0.0),), "%", OVER)


def told_and_measured(case: Case, device: Device) -> dict[str, int]:
    """Return the peak of a step in bytes as it is told and as it is; 0 where the device has too little memory."""
    released = on_shapes(case, device)
    told = told_peak(released, case, device)
    try:
        model, inputs = real(released, case, device)
        measured = measured_peak(model, inputs, case, device)
    except Exception as error:
        if not lacks_room(error):
            raise
        measured = 0
    return {"told": told, "measured": measured}


def on_shapes(case: Case, device: Device) -> ReleasedModel:
    """Return the model of a case without data, and its inputs; small where it runs on the processor."""
    toy = device.kind == "cpu"
    sizes = {name: value for name, value in TOY.items() if name in MODELS[case.model] or name == "image_size"}
    config = {**MODELS[case.model], **(sizes if toy else {})}
    tokens = case.thousands * (8 if toy else 1024) or None
    wanted = case.texts if case.thousands else case.images
    return model_on_shapes(config, tokens, min(wanted, 2) if toy else wanted, lora=case.lora, four_bits=case.four_bits)


def model_on_shapes(
    config: Mapping[str, Any],
    tokens: int | None,
    batch: int,
    *,
    lora: bool = False,
    four_bits: bool = False,
    dtype: str = "bfloat16",
) -> ReleasedModel:
    """Return the model of a configuration without data, and its inputs."""
    import torch

    from ckpt_surgery.planning.lora import add_lora
    from ckpt_surgery.planning.target import ReleasedModel, main_class
    from ckpt_surgery.survey.resolve import resolve

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        target = main_class(resolve([folder], variants=False))
        found = ReleasedModel.of(target, tokens=tokens, batch=batch, dtype=getattr(torch, dtype))
    if lora:
        add_lora(found.model, LORA, found.shapes, four_bits=four_bits)
    return found


def real(released: ReleasedModel, case: Case, device: Device) -> tuple[nn.Module, dict[str, Any]]:
    """Return the same model with random weights on the device, and its inputs there."""
    import torch

    from ckpt_surgery.planning.lora import add_lora

    kind: Any = type(released.model)
    place = torch.device(device.kind)
    with place:
        model: nn.Module = kind._from_config(deepcopy(released.model.config), dtype=torch.bfloat16).train()
    if case.lora:
        add_lora(model, LORA, place, four_bits=case.four_bits)
    inputs = {
        name: torch.rand(value.shape, dtype=value.dtype, device=place)
        if value.is_floating_point()
        else value.to(place)
        for name, value in released.inputs.items()
    }
    return model, inputs


def told_peak(released: ReleasedModel, case: Case, device: Device) -> int:
    """Return the peak as `explain` tells it: of CUDA's operators, or of the processor's in a dry run."""
    from ckpt_surgery.errors import PlanningError
    from ckpt_surgery.planning.cuda_operators import CudaOperators
    from ckpt_surgery.planning.devices import Device
    from ckpt_surgery.planning.explain import explanation_of, metered, without_values
    from ckpt_surgery.planning.training import ALONE, TrainingSetup

    try:
        card = Device.like(device.name).name
    except PlanningError:  # the workspace of cuBLAS is the same on most
        card = "H100"
    training = TrainingSetup.of("none", 1, None, card) if device.kind == "cuda" else ALONE
    with changed(case, released.model):
        without_values(released.model)
        with CudaOperators() if device.kind == "cuda" else nullcontext():
            step, drawn = metered(released.model, released.inputs, released.shapes)
        return explanation_of(released.model, step, drawn, training).peak_bytes


def measured_peak(model: nn.Module, inputs: dict[str, Any], case: Case, device: Device) -> int:
    """Return the most bytes that tensors held at once in a second step."""
    with changed(case, model):
        try:
            step(model, inputs, device)
            model.zero_grad(set_to_none=True)
            if device.kind == "cpu":
                return _metered_peak(model, inputs)
            device.reset_peak()
            step(model, inputs, device)
            return device.peak()
        finally:
            model.zero_grad(set_to_none=True)


def _metered_peak(model: nn.Module, inputs: dict[str, Any]) -> int:
    from ckpt_surgery.measure.loss import loss_of
    from ckpt_surgery.planning.explain import held_bytes
    from ckpt_surgery.planning.figures import Peak
    from ckpt_surgery.planning.step_meter import run_metered

    held = held_bytes(model.parameters()) + held_bytes(model.buffers())
    return Peak.of(run_metered(model, ((), inputs), loss_of), held).bytes


def changed(case: Case, model: nn.Module) -> Any:
    """Change the model as the case says; what comes back undoes that at its end."""
    from ckpt_surgery import long_context
    from ckpt_surgery.planning.choices import PlanChoice
    from ckpt_surgery.runtime.blocks.discovery import find_blocks

    if case.long_context:
        return long_context(model, host=True)
    stacks: dict[str, tuple[str, ...]] = {}
    for block in find_blocks(model):
        stacks[block.stack] = (*stacks.get(block.stack, ()), block.name)
    every = dict.fromkeys((name for names in stacks.values() for name in names), ())
    choice = PlanChoice(stacks, every if case.checkpointed else {}, fused_loss=case.fused_loss)
    return choice.apply(model, self_check="never")


def step(model: nn.Module, inputs: dict[str, Any], device: Device) -> float:
    """Return the seconds of a forward and backward."""
    import torch

    from ckpt_surgery.measure.loss import loss_of

    device.synchronize()
    start = perf_counter()
    torch.autograd.backward(loss_of(model(**inputs)))
    device.synchronize()
    return perf_counter() - start


def plan_and_every(device: Device, steps: int) -> dict[str, Any]:
    """Make a plan for the memory that every second block needs, and every n-th block where that fits too.

    The `budget` and the `peak` of the plan in bytes, and the seconds of its steps, `ours`, and of the `others`.
    """
    from ckpt_surgery import wrap_blocks
    from ckpt_surgery.planning.cuda_operators import CudaOperators
    from ckpt_surgery.planning.explain import explanation_of, metered
    from ckpt_surgery.planning.plan import plan_on_shapes
    from ckpt_surgery.planning.training import ALONE

    released = on_shapes(PLANNED, device)

    def told(model: nn.Module) -> Any:
        with CudaOperators() if device.kind == "cuda" else nullcontext():
            return metered(model, released.inputs, released.shapes)

    peaks = {}
    for every in EVERY:
        with wrap_blocks(released.model, every_n=every, self_check="never"):
            peaks[every] = explanation_of(released.model, *told(released.model)).peak_bytes
    memory = peaks[2]
    options = {"offload": False, "changes": False, "save": False}
    made = plan_on_shapes(released.model, released.shapes, told, memory, training=ALONE, **options)
    model, inputs = real(released, PLANNED, device)
    others = {}
    for every in EVERY:
        if peaks[every] <= memory:
            with wrap_blocks(model, every_n=every):
                others[str(every)] = _seconds(model, inputs, device, steps)
    applied = made.apply(model)
    ours = _seconds(model, inputs, device, steps)
    peak = measured_peak(model, inputs, PLANNED, device) if ours else 0
    if applied is not None:
        applied.undo()
    return {"budget": memory, "peak": peak, "ours": ours, "others": others}


def plan_figures(kept: Mapping[str, Any], device: Device) -> list[Figure]:
    """Return the plan's peak next to its budget, and its steps next to those of every n-th block."""
    memory, ours, others = kept["budget"], kept["ours"], kept["others"]
    if not ours or not all(others.values()):
        return [Figure("the plan fits", (0.0,), "", Target(1.0, at_least=True))]
    best = min(min(seconds) for seconds in others.values())
    return [
        Figure("plan: budget", (memory / GIGABYTE,), "GB"),
        Figure("plan: peak / budget", (kept["peak"] / memory,), "x", Target(1.03)),
        *(Figure(f"every {every}: a step", tuple(seconds), "s") for every, seconds in others.items()),
        Figure("plan: a step", tuple(ours), "s"),
        Figure("plan / best every n: a step", (min(ours) / best,), "x", NO_SLOWER if device.kind == "cuda" else None),
    ]


def _seconds(model: nn.Module, inputs: dict[str, Any], device: Device, steps: int) -> tuple[float, ...]:
    """Time some steps, behind those in which every block checks itself; none where they have no room."""
    from ckpt_surgery.runtime.self_check.schedule import FIRST_STEPS

    taken = []
    try:
        for _ in range(FIRST_STEPS + steps):
            model.zero_grad(set_to_none=True)
            taken.append(step(model, inputs, device))
    except Exception as error:
        if not lacks_room(error):
            raise
        return ()
    finally:
        model.zero_grad(set_to_none=True)
    return tuple(taken[FIRST_STEPS:])


if __name__ == "__main__":
    sys.exit(main())
