"""What does `wrap_blocks` save where checkpointing silently does nothing? GPTBigCode in transformers 4.57.6.

Two measurements, each without checkpointing, after `gradient_checkpointing_enable()`, and after `wrap_blocks`: the
bytes that autograd keeps from the forward to the backward pass of a tiny model, and the peak memory of a process that
trains a model of StarCoder's shape for one step on the CPU. Writes json; `docs/draw.py` draws it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from time import process_time
from typing import Any

from benchmarks.figures import ROOT, machine, option_parser
from benchmarks.progress import write_whole
from benchmarks.stopwatch import measure

WAYS = ("without", "enabled", "wrapped")
TINY = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4}
LAYERS, WIDTH, BATCH, TOKENS = 12, 768, 4, 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = option_parser("live_repair", __doc__)
    parser.add_argument("--train", choices=WAYS, help="only train in this process, and print what came of it")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.train:
        print(json.dumps(trained(options.train)))
        return 0
    write_whole(options.out, json.dumps(measured(), indent=2) + "\n")
    print(f"Written to {options.out}")
    return 0


def measured() -> dict[str, Any]:
    """Make both measurements, and say what they were made with."""
    import torch
    import transformers

    peaks = {}
    for way in WAYS:
        run = measure([sys.executable, "-m", "benchmarks.live_repair", "--train", way], folder=ROOT)
        peaks[way] = {"peak_bytes": run.peak, **json.loads(run.output)}
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": {**versions, "transformers": transformers.__version__},
        "tiny": {"model": TINY, "kept_bytes": kept_bytes()},
        "real": {"layers": LAYERS, "width": WIDTH, "batch": BATCH, "tokens": TOKENS} | peaks,
    }


def kept_bytes() -> dict[str, int]:
    """Return the bytes that autograd keeps from the forward to the backward pass of the tiny model, each way."""
    import torch
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    from ckpt_surgery import verify, wrap_blocks

    model = GPTBigCodeForCausalLM(GPTBigCodeConfig(**TINY)).train()
    batch = dict.fromkeys(["input_ids", "labels"], torch.arange(32).reshape(2, 16))
    model.gradient_checkpointing_enable()
    before = verify(model, batch).modes[0].cost
    wrap_blocks(model)
    after = verify(model, batch).modes[0].cost
    assert before is not None
    assert after is not None
    return dict(zip(WAYS, (before.reference_kept_bytes, before.kept_bytes, after.kept_bytes), strict=True))


def trained(way: str) -> dict[str, float]:
    """Train for one step: the processor's seconds, and the loss."""
    import torch
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    from ckpt_surgery import wrap_blocks

    torch.manual_seed(0)
    sizes = {"n_positions": TOKENS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": WIDTH // 64}
    dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    model = GPTBigCodeForCausalLM(GPTBigCodeConfig(vocab_size=8192, **sizes, **dropout)).train()
    if way == "enabled":
        model.gradient_checkpointing_enable()
    elif way == "wrapped":
        wrap_blocks(model)
    ids = torch.randint(8192, (BATCH, TOKENS))
    start = process_time()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return {"processor_seconds": round(process_time() - start, 1), "loss": loss.item()}


if __name__ == "__main__":
    sys.exit(main())
