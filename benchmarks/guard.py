"""What a guard costs: time between checked steps and in them, and memory while blocks are proved.

    python -m benchmarks.guard

Times are CPU times of this process: minima over rounds in which each kind of step runs once. Memory is measured in
child processes whose address space is limited, so that a step without checkpointing does not fit.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
from pathlib import Path
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.stopwatch import measure
from ckpt_surgery import Guard, guard, wrap_blocks
from ckpt_surgery.text import size

BETWEEN_GOAL, CHECKED_GOAL = 0.01, 0.30
LIMIT = 160 * 2**20
"""The bytes that a child may allocate beyond its model."""
BLOCKS = 12


def llama(blocks: int, hidden: int, tokens: int, batch: int) -> tuple[nn.Module, Tensor]:
    """Make a Llama of random weights and a batch for it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": blocks}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": tokens}
    config = LlamaConfig(**sizes, **heads, vocab_size=128, attn_implementation="eager")
    return LlamaForCausalLM(config).train(), torch.randint(0, 128, (batch, tokens))


def step(model: nn.Module, ids: Tensor) -> None:
    """Forward, backward and a step of SGD."""
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=1e-3)
            parameter.grad = None


def times(rounds: int) -> dict[str, float]:
    """Return the least CPU seconds of a step: bare, between checked steps, and checked."""
    models: dict[str, tuple[nn.Module, Tensor, Guard | None]] = {}
    for kind, every in (("bare", 0), ("between", 10**9), ("checked", 1)):
        model, ids = llama(blocks=BLOCKS, hidden=128, tokens=128, batch=4)
        wrap_blocks(model, self_check="never")
        models[kind] = (model, ids, guard(model, every=every, patience=4) if every else None)
    for model, ids, _ in models.values():
        for _ in range(BLOCKS + 4):  # until each block is proved and every parameter was seen to train
            step(model, ids)
    least = dict.fromkeys(models, float("inf"))
    for _ in range(rounds):
        for kind, (model, ids, _) in models.items():
            start = process_time()
            step(model, ids)
            least[kind] = min(least[kind], process_time() - start)
    return least


def child(kind: str) -> None:
    """Train a few steps in `LIMIT` bytes, and print what happened as JSON."""
    model, ids = llama(blocks=BLOCKS, hidden=64, tokens=512, batch=4)
    if kind != "plain":
        wrap_blocks(model)
    watching = guard(model) if kind == "guarded" else None
    before = status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (before + LIMIT, before + LIMIT))
    fits = True
    try:
        for _ in range(BLOCKS):
            step(model, ids)
    except (MemoryError, RuntimeError) as error:
        fits = "alloc" not in str(error) and not isinstance(error, MemoryError)
        if fits:
            raise
    report = watching.report() if watching is not None else None
    block = max((row.proof.alone_bytes for row in report.blocks), default=0) if report is not None else 0
    proved = report.proved if report is not None else 0
    print(json.dumps({"fits": fits, "peak": status("VmPeak") - before, "block": block, "proved": proved}))


def status(name: str) -> int:
    """Return a number of bytes that Linux keeps of this process."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.M)
    return int(found.group(1)) * 1024 if found else 0


def in_child(kind: str) -> dict[str, int]:
    """Run a child of this kind, and return what it printed."""
    environment = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = measure([sys.executable, "-m", "benchmarks.guard", "--child", kind], environment=environment)
    result: dict[str, int] = json.loads(run.output)
    return result


def main() -> int:
    """Run what the arguments ask for; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--child", choices=("plain", "wrapped", "guarded"))
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    torch.set_num_threads(1)
    least = times(options.rounds)
    between, checked = (least[kind] / least["bare"] - 1 for kind in ("between", "checked"))
    print(f"step: {1000 * least['bare']:.1f} ms")
    print(f"between checked steps: {between:+.1%} (goal: under {BETWEEN_GOAL:.0%})")
    print(f"checked steps: {checked:+.1%} (goal: under {CHECKED_GOAL:.0%})")
    plain, wrapped, guarded = (in_child(kind) for kind in ("plain", "wrapped", "guarded"))
    more = guarded["peak"] - wrapped["peak"]
    print(f"without checkpointing, in {size(LIMIT)}: {'fits' if plain['fits'] else 'does not fit'}")
    print(f"wrapped: peak {size(wrapped['peak'])}")
    print(f"wrapped and proved: peak {size(guarded['peak'])}, {guarded['proved']} of {BLOCKS} blocks proved")
    print(f"the proof takes {size(max(more, 0))} more; a block keeps {size(guarded['block'])} (goal: not more)")
    fits = not plain["fits"] and wrapped["fits"] and guarded["fits"] and guarded["proved"] == BLOCKS
    met = between < BETWEEN_GOAL and checked < CHECKED_GOAL and fits and more <= guarded["block"]
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
