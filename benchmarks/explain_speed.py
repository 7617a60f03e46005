"""How fast is `explain` on large models, and how much memory does it take? The command, as a user runs it.

The shapes are those of Llama 3 with 8B and 405B parameters and of DeepSeek-V3, with 256 experts. Each run explains two
steps, with and without checkpointing, and imports torch and transformers. Prints a table of figures and targets;
writes json. Takes a minute on two idle cores.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.figures import Figure, Target, document, finish, option_parser, plain_table, rounds_option
from benchmarks.stopwatch import CommandFailed, Run, measure

GIGABYTE = 10**9
"""The unit of memory here."""
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model by its configuration, the tokens of its step, and the most seconds and gigabytes."""

    name: str
    config: Mapping[str, Any]
    tokens: int
    seconds: Target
    memory: Target | None = None


SHAPES = (
    Shape(
        "Llama 8B",
        {
            **_LLAMA,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
        8192,
        Target(15.0),
        Target(1.0),
    ),
    Shape(
        "Llama 405B",
        {
            **_LLAMA,
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
        },
        8192,
        Target(60.0),
    ),
    Shape(
        "DeepSeek-V3, 256 experts",
        {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
        4096,
        Target(60.0),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    parser = option_parser("explain_speed", __doc__)
    parser.add_argument("--rounds", type=rounds_option, default=1, help="runs of each model (default: 1)")
    options = parser.parse_args(arguments)
    measured: list[Figure] = []
    try:
        for shape in SHAPES:
            print(f"explain_speed: {shape.name}", file=sys.stderr, flush=True)
            measured += figures(shape, [run(shape) for _ in range(options.rounds)])
    except CommandFailed as error:
        print(f"explain_speed: {error}.", file=sys.stderr)
        return 2
    return finish(
        "explain_speed", measured, document(measured), options.out, [plain_table("ckpt_surgery explain", measured)]
    )


def run(shape: Shape) -> Run:
    """Explain one model, with its config.json alone. Raises CommandFailed."""
    with tempfile.TemporaryDirectory(prefix="explain-speed-") as folder:
        config = {"torch_dtype": "bfloat16", **shape.config}
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, "-m", "ckpt_surgery", "explain", folder, "--tokens", str(shape.tokens)]
        return measure(command, folder=ROOT)


def figures(shape: Shape, runs: Sequence[Run]) -> list[Figure]:
    """Time and memory of one model."""
    return [
        Figure(f"{shape.name}, imports included", tuple(run.seconds for run in runs), "s", shape.seconds),
        Figure(f"{shape.name}: memory", tuple(run.peak / GIGABYTE for run in runs), "GB", shape.memory),
    ]


if __name__ == "__main__":
    sys.exit(main())
