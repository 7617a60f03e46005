"""Train a step of tiny models with one copy of transformers, and generate, in a separate process.

Usage: python -m tests.measure.step_script FOLDER RESULT, where FOLDER holds the `transformers` package to use.
RESULT becomes a JSON object from class name to what `trained` returns. (Some models print while they are imported.)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.modeling_layers import GradientCheckpointingLayer

from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from ckpt_surgery.tiny import tiny_model

GENERATING = ("GPTBigCodeForCausalLM", "xLSTMForCausalLM", "ZambaForCausalLM", "Zamba2ForCausalLM", "ClvpForCausalLM")
CLASSES = (*GENERATING, "SwiftFormerForImageClassification")


def main(folder: Path, result: Path) -> None:
    here = Path(transformers.__file__).resolve()
    assert here.is_relative_to(folder.resolve()), f"imported transformers from {here}, not from {folder}"
    result.write_text(json.dumps({name: trained(name) for name in CLASSES}), encoding="utf-8")


def trained(name: str) -> dict[str, Any]:
    """Take one step and generate, without checkpointing; return plain values."""
    tiny = tiny_model(getattr(transformers, name))
    model: Any = tiny.model.train()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)  # so that tokens differ
    loss = loss_of(model(**tiny.inputs))
    torch.autograd.backward(loss)
    return {
        "layers": [isinstance(block.module, GradientCheckpointingLayer) for block in find_blocks(model)],
        "loss": loss.item(),
        "reached": [n for n, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())],
        "generated": generated(model.eval(), tiny.inputs["input_ids"][:, :4]) if name in GENERATING else [],
    }


def generated(model: Any, prompt: torch.Tensor) -> Any:
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    return model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **options).tolist()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
