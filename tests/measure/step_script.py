"""Train every tiny model with one copy of transformers, in a separate process.

Usage: python -m tests.measure.step_script FOLDER RESULT, where FOLDER holds the `transformers` package to use.
RESULT becomes a JSON object from case name to what `train` returns. (Some models print while they are imported.)
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any, get_args

import transformers
from transformers.modeling_layers import GradientCheckpointingLayer

from ckpt_surgery.measure.compare import compare
from ckpt_surgery.measure.generators import seed_all
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.step import prepared, run_step
from tests.measure.tiny_six import CASES, Case, nested_layers


def main(folder: Path, result: Path) -> None:
    here = Path(transformers.__file__).resolve()
    assert here.is_relative_to(folder.resolve()), f"imported transformers from {here}, not from {folder}"
    result.write_text(json.dumps({name: train(case) for name, case in CASES.items()}), encoding="utf-8")


def train(case: Case) -> dict[str, Any]:
    """Run one case without checkpointing and in both modes; return plain values."""
    started = time.perf_counter()
    model = case.build()
    blocks = case.blocks(model)
    nested = nested_layers(model, blocks)
    inputs = case.inputs()
    reference = run_step(model, inputs, blocks=blocks)
    report: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": {name: isinstance(block, GradientCheckpointingLayer) for name, block in blocks.items()},
        "error": reference.error and str(reference.error),
        "loss": reference.loss,
        "reached": sorted(n for n, g in reference.gradients.items() if g is not None and bool(g.any())),
        "kept_bytes": reference.memory.kept,
        "generated": generated(model, case.generate()) if case.generate else None,
    }
    modes = report["modes"] = {}
    for mode in get_args(Mode):
        run = run_step(model, inputs, blocks={**blocks, **nested}, checkpointing=mode)
        own = {name: run.entries[name] for name in blocks}
        verdict = compare(reference, dataclasses.replace(run, entries=own))
        modes[mode] = {
            "faults": [fault.to_dict() for fault in verdict.faults],
            "lost": verdict.lost,
            "wrong": verdict.wrong,
            "largest_error": verdict.error,
            "entries": {name: [e.forward, e.backward] for name, e in own.items()},
            "nested": {name: [run.entries[name].forward, run.entries[name].backward] for name in nested},
            "kept_bytes": run.memory.kept,
            "best_kept_bytes": reference.memory.best,
        }
    report["seconds"] = time.perf_counter() - started
    return report


def generated(model: Any, arguments: dict[str, Any]) -> Any:
    """Return the token ids that a model generates, without checkpointing and from the same seed."""
    with prepared(model, None):
        model.eval()
        seed_all(0)
        tokens = model.generate(**arguments)
    return getattr(tokens, "sequences", tokens).tolist()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
