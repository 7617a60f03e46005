"""The demo: a training step of models that people know, as released and after `wrap_blocks`, on the CPU.

Each model has the structure of its class and random weights. For each way it shows the bytes that are kept from the
forward to the backward, the seconds of a step, and how its gradients differ from those without checkpointing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.versions import gradients
from ckpt_surgery.cli.terminal import progress_bar
from ckpt_surgery.text import size, text_table

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_NOISE = 1e-4
WARM_UP, TIMED = 3, 2  # the self-check looks closest at the first three steps
HEADINGS = ("model", "way", "kept", "step", "gradients")


@dataclass(frozen=True, slots=True)
class Case:
    """A class of transformers with its sizes, the shapes of its inputs, and its mode of checkpointing."""

    title: str
    model: str
    sizes: Mapping[str, Any]
    tokens: int = 0
    pixels: tuple[int, ...] = ()
    use_reentrant: bool = False


TEXT = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}
VISION = {"hidden_size": 192, "intermediate_size": 768, "image_size": 112}
CASES = (
    Case("Llama", "LlamaForCausalLM", TEXT | {"num_hidden_layers": 6}, tokens=256),
    Case(
        "Llama 3.2 Vision",
        "MllamaVisionModel",
        VISION
        | {"attention_heads": 8, "num_hidden_layers": 8, "num_global_layers": 2}
        | {"max_num_tiles": 1, "intermediate_layers_indices": [3], "supported_aspect_ratios": [[1, 1]]},
        pixels=(1, 1, 1, 3, 112, 112),
    ),
    Case(
        "Llama 4, reentrant",
        "Llama4VisionModel",
        VISION
        | {"num_hidden_layers": 6, "num_attention_heads": 6, "vision_output_dim": 768}
        | {"projector_input_dim": 768, "projector_output_dim": 768},
        pixels=(1, 3, 112, 112),
        use_reentrant=True,
    ),
    Case(
        "Mixtral, reentrant",
        "MixtralForCausalLM",
        TEXT
        | {"num_hidden_layers": 4, "num_key_value_heads": 4, "num_local_experts": 4}
        | {"output_router_logits": True, "router_aux_loss_coef": 0.02},
        tokens=256,
        use_reentrant=True,
    ),
)


def main() -> None:
    """Run the demo."""
    rows = []
    with progress_bar() as progress:
        for at, case in enumerate(CASES):
            if progress is not None:
                progress("training", at, len(CASES))
            rows += list(rows_of(case))
    print("\n".join(text_table(HEADINGS, rows)))
    print("Kept: from forward to backward. Of Llama 3.2 and 4 it is the vision tower.")


@dataclass(frozen=True, slots=True)
class Step:
    """A step's saved bytes, the seconds of the fastest run, and every nonzero gradient."""

    kept: int
    seconds: float
    gradients: Mapping[str, Tensor]


def rows_of(case: Case) -> Iterator[list[str]]:
    """Make a row for each way to train the model."""
    import torch
    import transformers

    from ckpt_surgery import wrap_blocks

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")  # the switch has a new name, and what is lost is shown below
    torch.manual_seed(0)
    model_class = getattr(transformers, case.model)
    model = model_class(model_class.config_class(**case.sizes)).train()
    batch = batch_of(case)
    without = measured(model, batch)
    yield [case.title, "without", size(without.kept), f"{without.seconds:.2f} s", ""]
    model.gradient_checkpointing_enable({"use_reentrant": case.use_reentrant})
    released = measured(model, batch)
    yield ["", "as released", *cells(released, without)]
    wrap_blocks(model)
    yield ["", "wrap_blocks", *cells(measured(model, batch), without)]


def batch_of(case: Case) -> dict[str, Tensor]:
    """Random inputs of the model, by argument."""
    import torch

    if case.tokens:
        tokens = torch.randint(case.sizes["vocab_size"], (1, case.tokens))
        return {"input_ids": tokens, "labels": tokens}
    ratios = {"aspect_ratio_ids": (1, 1), "aspect_ratio_mask": (1, 1, 1)} if len(case.pixels) == 6 else {}
    ones = {name: torch.ones(shape, dtype=torch.long) for name, shape in ratios.items()}
    return {"pixel_values": torch.randn(case.pixels), **ones}


def measured(model: nn.Module, batch: Mapping[str, Tensor]) -> Step:
    """Train for a few steps without an optimizer, so that each has the same gradients."""
    from ckpt_surgery.measure.loss import loss_of

    found, kept = gradients(model, batch)
    seconds = []
    for _ in range(WARM_UP + TIMED):
        model.zero_grad()
        start = perf_counter()
        loss_of(model(**batch)).backward()  # type: ignore[no-untyped-call]
        seconds.append(perf_counter() - start)
    return Step(
        kept, min(seconds[WARM_UP:]), {name: each for name, each in found.items() if each is not None and each.any()}
    )


def cells(step: Step, without: Step) -> list[str]:
    """Return the figures of a step, with its gradients held against those without checkpointing."""
    lost = without.gradients.keys() - step.gradients.keys()
    there = step.gradients.keys() & without.gradients.keys()
    errors = [((step.gradients[name] - (own := without.gradients[name])).norm() / own.norm()).item() for name in there]
    error = max(errors, default=0.0)
    said = f"off by up to {100 * error:.0f} %" if error > MOST_NOISE else "equal"
    said = f"{len(lost)} of {len(without.gradients)} lost" if lost else said
    return [size(step.kept), f"{step.seconds:.2f} s", said]


if __name__ == "__main__":
    main()
