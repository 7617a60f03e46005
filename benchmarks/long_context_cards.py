"""How many tokens fit on cards of four sizes after `long_context`, for three ways to train: predicted on shapes.

    python -m benchmarks.long_context_cards [--page]

Two blocks run; the weights, gradients and optimizer states of the others are added. That is enough, because nothing
else of a block is on the device while another runs. Over the length the peak is the higher of two lines: short texts
have it while a tile runs, long ones in the backward of attention. Both lines go through the same two lengths.
Takes minutes; `--page` writes the figures of the table in docs/how-to/long-context.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plan_on_gpu import MODELS, config_of, model_on_shapes
from benchmarks.survey import COVERAGE
from ckpt_surgery.planning.devices import MARGIN
from ckpt_surgery.text import markdown_table

if TYPE_CHECKING:
    from ckpt_surgery.planning.allocations import StepAllocations
    from ckpt_surgery.planning.explanation import Explanation
    from ckpt_surgery.planning.target import ReleasedModel

CARDS = COVERAGE / "long_context_cards.json"
"""Where the figures of the table in docs/how-to/long-context.md are kept."""
MEMORIES = (24, 48, 80, 141)
"""Gigabytes of the cards in it."""
LENGTHS = (64, 128)
"""Thousands of tokens of the texts that run: the attention of shorter ones has its peak in another block."""
_ATTENTION_BACKWARD = "attention_backward"
_LAYERS = 2
_POSITIONS = 2**22
_QWEN = {"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": False}
QWEN_32B = config_of("Qwen3ForCausalLM", 64, 5120, 25600, 64, **_QWEN)


@dataclass(frozen=True, slots=True)
class Line:
    """A peak in bytes as a line over tokens: what is `fixed`, and a `slope` for each token."""

    fixed: int
    slope: float


@dataclass(frozen=True, slots=True)
class CardRow:
    """A way to train, with tiles on the `host` or not: its peak is the highest of `lines`.

    The inputs of blocks take `host_bytes` of the host's memory for each token.
    """

    recipe: str
    host: bool
    lines: tuple[Line, ...]
    host_bytes: int

    def peak(self, tokens: int) -> float:
        """Return the peak of a step of so many tokens, in bytes."""
        return max(line.fixed + line.slope * tokens for line in self.lines)

    def tokens(self, gigabytes: int) -> int:
        """How many tokens fit on a card, in thousands rounded down; 0 where the model does not."""
        room = gigabytes * 1e9 * (1 - MARGIN)
        return max(int(min((room - line.fixed) / line.slope for line in self.lines)) // 1000 * 1000, 0)


def write_cards(rows: Iterable[CardRow], path: Path = CARDS) -> None:
    """Keep what was predicted, one row a line."""
    lines = ",\n".join(f"  {json.dumps(asdict(row))}" for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read_cards(path: Path = CARDS) -> list[CardRow]:
    """Return what was predicted. Raises OSError, or KeyError or ValueError where it is not such."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return [CardRow(**{**row, "lines": tuple(Line(**line) for line in row["lines"])}) for row in data]


def cards_table(rows: Iterable[CardRow]) -> str:
    """How many tokens fit on each card, as a table."""
    cells = [
        [
            f"{row.recipe}{', `host=True`' if row.host else ''}",
            *(f"{row.tokens(memory):,}" if row.tokens(memory) else "" for memory in MEMORIES),
            f"{row.lines[-1].slope / 1e6:.3f} MB",
            f"{row.host_bytes / 1e6:.2f} MB",
        ]
        for row in rows
    ]
    heads = ["", *(f"{memory} GB" for memory in MEMORIES), "a token, device", "a token, host"]
    return markdown_table(heads, cells)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A way to train a model of this configuration."""

    name: str
    config: Mapping[str, Any]
    lora: bool = True
    four_bits: bool = False
    optimizer: str = "adamw"

    @property
    def layers(self) -> int:
        """How many blocks the model has."""
        return int(self.config["num_hidden_layers"])


LLAMA_LORA = Recipe("Llama 8B, LoRA", MODELS["Llama 8B"])
LLAMA_WHOLE = Recipe("Llama 8B, all weights, 8-bit AdamW", MODELS["Llama 8B"], lora=False, optimizer="adamw-8bit")
RECIPES = (LLAMA_LORA, LLAMA_WHOLE, Recipe("Qwen3 32B, QLoRA", QWEN_32B, four_bits=True))


def card_rows(recipes: tuple[Recipe, ...] = RECIPES) -> Iterator[CardRow]:
    """Predict each recipe, by default and with the tiles on the host."""
    for recipe in recipes:
        for host in (False, True):
            peaks = [whole_peaks(recipe, thousands, host=host) for thousands in LENGTHS]
            lines = tuple(_line(*pair) for pair in zip(*peaks, strict=True))
            yield CardRow(recipe.name, host, lines, recipe.layers * int(recipe.config["hidden_size"]) * 2)


def _line(first: int, second: int) -> Line:
    """Return the line through the peaks at both lengths."""
    slope = (second - first) / (LENGTHS[1] - LENGTHS[0]) / 1024
    return Line(round(first - slope * LENGTHS[0] * 1024), slope)


def whole_peaks(recipe: Recipe, thousands: int, *, layers: int = _LAYERS, host: bool) -> tuple[int, int]:
    """Return the peak in bytes of a step of all layers, of which so many run, and that in attention's backward."""
    from ckpt_surgery.planning.explain import held_bytes
    from ckpt_surgery.planning.states import state_bytes
    from ckpt_surgery.planning.training import Optimizer

    model = on_shapes(recipe, thousands, layers)
    told, step = explained(model, recipe.optimizer, host=host)
    alive = step.alive_bytes
    attending = max(alive[each.born - 1] for each in step.allocations if _ATTENTION_BACKWARD in each.operator)
    block = model.model.get_submodule("model.layers.0")
    weights = list(block.parameters())
    trained = [parameter for parameter in weights if parameter.requires_grad]
    held = held_bytes([*weights, *block.buffers()]) + held_bytes(trained)
    more = (recipe.layers - layers) * (held + state_bytes(weights, Optimizer(recipe.optimizer)))
    return told.peak_bytes + more, told.peak_bytes - max(alive) + attending + more


def on_shapes(recipe: Recipe, thousands: int, layers: int) -> ReleasedModel:
    """Return the first layers of the model without data, and a text for it."""
    sizes = {"num_hidden_layers": layers, "max_position_embeddings": _POSITIONS}
    config, tokens = {**recipe.config, **sizes}, thousands * 1024
    return model_on_shapes(config, tokens, 1, lora=recipe.lora, four_bits=recipe.four_bits)


def explained(model: ReleasedModel, optimizer: str = "none", **options: Any) -> tuple[Explanation, StepAllocations]:
    """Return the explanation of a step after `long_context` with these options, and what it allocates."""
    from ckpt_surgery.long_sequences.long_context import long_context
    from ckpt_surgery.planning.cuda_operators import CudaOperators
    from ckpt_surgery.planning.explain import explanation_of, metered, without_values
    from ckpt_surgery.planning.training import TrainingSetup

    with long_context(model.model, **options), CudaOperators():
        without_values(model.model)
        step, drawn = metered(model.model, model.inputs, model.shapes)
        return explanation_of(model.model, step, drawn, TrainingSetup.of(optimizer, 1, None, None)), step


def main() -> None:
    """Predict, print the table, and keep its figures if that is asked for."""
    parser = argparse.ArgumentParser("long_context_cards", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--page", action="store_true", help="write the figures of the table")
    options = parser.parse_args()
    rows = list(card_rows())
    print(cards_table(rows))
    if options.page:
        write_cards(rows)


if __name__ == "__main__":
    main()
