"""What `explain` predicts, held against figures that others have measured on GPUs and published.

    python -m benchmarks.published_figures [--page]

Needs no GPU: the predictions are made on shapes, at the published settings. Prints a table; `--page` writes
docs/coverage/published.md. Exits with 1 where a prediction is off by more than 5 % and it is not known why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from benchmarks.plan_on_gpu import model_on_shapes
from ckpt_surgery.distributed import fuse_loss
from ckpt_surgery.planning.allocations import AllocationKind
from ckpt_surgery.planning.cuda_operators import CudaOperators
from ckpt_surgery.planning.explain import explanation_of, metered
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.target import ReleasedModel
from ckpt_surgery.planning.training import Optimizer, Sharding, TrainingSetup
from ckpt_surgery.text import markdown_table

MOST = 0.05
"""The largest relative error that is accepted."""
GIBIBYTE, MEBIBYTE = 2**30, 2**20
PAGE = Path(__file__).resolve().parents[1] / "docs" / "coverage" / "published.md"
TEXT = """\
<!-- Written by `python -m benchmarks.published_figures --page`. -->

# Published figures

What `explain` predicts without a GPU, held against figures that others measured on one. Made by
`python -m benchmarks.published_figures`, which fails where one is off by more than 5 % and nothing explains it.

{table}

- **Mosaic**: [torch's tutorial](https://docs.pytorch.org/tutorials/beginner/mosaic_memory_profiling_tutorial.html)
  trains GPT-2 on 4 x 512 tokens in float32 with AdamW. Its total is without the parameters, which were there before it
  began to record. Its loop holds what the model returns, the logits and, without checkpointing, a cache, through the
  backward. Its units are GiB and MiB.
- **Offload**: what [transformers' own offload](https://github.com/huggingface/transformers/pull/48444)
  frees of the memory that is held after the forward, with the configuration of Qwen3 in bfloat16, on an H100.
  Predicted is what each further checkpointed block keeps, times the blocks. The `offload` of `wrap_blocks` leaves the
  inputs of the last blocks on the device, for the backward needs them first.
- **Llama 8B at 500,000 tokens**: the block inputs, as worked out in [torch's issue](https://github.com/pytorch/pytorch/issues/158657).
- **TRL**: [its guide](https://huggingface.co/docs/trl/long_context_training) trains
  Qwen3-8B on one text of 1,048,576 tokens on eight H100s, in bfloat16 with AdamW, FSDP2 and context parallelism, which
  leaves 131,072 tokens to each. The first figure is what one rank would need with checkpointing, the plain loss and no
  offload; the second what it measured with a loss in chunks and transformers' offload. There the prediction is off:
  {explained}
"""

_RING = "`explain` runs no context parallelism, and does not count what its ring attention holds."


@dataclass(frozen=True, slots=True)
class Row:
    """A figure: its publisher and subject, and its published and predicted value in one unit."""

    source: str
    name: str
    published: float
    predicted: float
    unit: str
    explained: str = ""
    """Why a prediction is off, where that is known."""

    @property
    def error(self) -> float:
        """How far the prediction is off, relative to what was published."""
        return self.predicted / self.published - 1

    @property
    def close(self) -> bool:
        """Whether the prediction is close enough, or it is known why not."""
        return abs(self.error) <= MOST or bool(self.explained)


def mosaic() -> list[Row]:
    """GPT-2 in torch's tutorial, without and with checkpointing."""
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    rows = []
    for how, total, activations, gradients in (
        ("without checkpointing", 4.62, 2.93, 793.39),
        ("with checkpointing", 2.55, 872.79 / 1024, 785.27),
    ):
        checkpointed = how == "with checkpointing"
        released_model = model_on_shapes(config, 512, 4, dtype="float32")
        cast(Any, released_model.model).config.use_cache = not checkpointed
        if checkpointed:
            released_model.wrap()
        told = _with_output_held(released_model)
        recorded = told.peak_bytes - told.parameter_bytes - told.buffer_bytes
        rows += [
            Row("Mosaic", f"peak {how}", total, recorded / GIBIBYTE, "GiB"),
            Row("Mosaic", f"activations {how}", activations, told.kept_bytes / GIBIBYTE, "GiB"),
            Row("Mosaic", f"backward {how}", gradients, told.peak.by_kind[AllocationKind.BACKWARD] / MEBIBYTE, "MiB"),
            Row("Mosaic", f"optimizer {how}", 949.4, told.optimizer_bytes / MEBIBYTE, "MiB"),
        ]
    return rows


def _with_output_held(model: ReleasedModel) -> Explanation:
    """Explain a step whose loop holds what the model returns, AdamW's state included."""
    held = []

    def loss(output: Any) -> Tensor:
        held.append(output)
        return cast(Tensor, output.loss)

    with CudaOperators():
        step, drawn = metered(model.model, model.inputs, model.shapes, loss)
    return explanation_of(model.model, step, drawn, TrainingSetup(Optimizer.ADAMW))


def offload() -> list[Row]:
    """Return what transformers' own offload frees of a Qwen3."""
    rows = []
    for layers, hidden, tokens, freed in ((8, 1024, 8192, 128.0), (28, 2048, 32768, 3584.0)):
        config = _config("Qwen3", hidden, 3 * hidden, hidden // 128, num_key_value_heads=hidden // 256)
        name = f"freed of {layers} layers of {hidden:,}, {tokens:,} tokens"
        rows.append(Row("Offload", name, freed, layers * _of_a_block(config, tokens) / MEBIBYTE, "MiB"))
    return rows


def long_text() -> list[Row]:
    """Return the block inputs of a Llama of 8B at 500,000 tokens."""
    config = _config("Llama", 4096, 14336, 32, vocab_size=128256, max_position_embeddings=524288)
    predicted = 32 * _of_a_block(config, 500_000)
    return [Row("Llama 8B", "block inputs at 500,000 tokens", 122.0, predicted / GIBIBYTE, "GiB")]


def million() -> list[Row]:
    """Predict one of eight ranks that train Qwen3-8B on a text of a million tokens."""
    training = TrainingSetup(Optimizer.ADAMW, 8, Sharding.FSDP)
    sizes = {"num_hidden_layers": 36, "vocab_size": 151936, "max_position_embeddings": 131072}
    peaks = []
    for chunked in (False, True):
        model = model_on_shapes(_config("Qwen3", 4096, 12288, 32, **sizes), 131072, 1)
        if chunked:
            fuse_loss(model.model)
        model.wrap(offload=chunked)
        peaks.append(model.explained(training).peak_bytes / 1e9)
    return [
        Row("TRL", "peak of a rank, plain loss", 288.0, peaks[0], "GB"),
        Row("TRL", "peak of a rank, loss in chunks, offload", 56.2, peaks[1], "GB", _RING),
    ]


def _config(family: str, hidden: int, inner: int, heads: int, **more: int) -> dict[str, Any]:
    names = {"architectures": [f"{family}ForCausalLM"], "model_type": family.lower()}
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads}
    return {**names, **sizes, "num_key_value_heads": 8, **more}


def _of_a_block(config: Mapping[str, Any], tokens: int) -> int:
    """Return what a step with checkpointing keeps more for each further block."""
    kept = []
    for layers in (1, 2):
        model = model_on_shapes({**config, "num_hidden_layers": layers}, tokens, 1)
        model.wrap()
        kept.append(model.explained().kept_bytes)
    return kept[1] - kept[0]


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    cells = [
        (
            *(row.source, row.name, f"{row.published:,.2f} {row.unit}"),
            *(f"{row.predicted:,.2f} {row.unit}", f"{row.error:+.1%}"),
        )
        for row in rows
    ]
    table = markdown_table(("source", "figure", "published", "predicted", "off by"), cells)
    return TEXT.format(table=table, explained=_RING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict, print the page, and write it if that is asked for. Returns 1 where a prediction is off."""
    parser = argparse.ArgumentParser(prog="published_figures", description=__doc__)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args(arguments)
    rows = [*mosaic(), *offload(), *long_text(), *million()]
    print(page(rows))
    if options.page:
        PAGE.write_text(page(rows), encoding="utf-8")
    return 0 if all(row.close for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
