"""Shared parts of the scripts: the limit, a small Llama, rows of tokens, and the output."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import transformers

from tests.zoo.memory_limit import MemoryLimit, limit_memory

VOCABULARY, LENGTH = 96, 64


def limited() -> MemoryLimit:
    """Apply the environment's limit; call it before a model is made."""
    return limit_memory(int(os.environ["LIMIT"]) if os.environ.get("LIMIT") else None)


def llama() -> Any:
    """Build a Llama of three layers; its weights are the same each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).train()


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows of tokens, which are their labels."""
    drawn = torch.Generator().manual_seed(1)
    return [
        {"input_ids": ids, "labels": ids}
        for ids in (torch.randint(1, VOCABULARY, (LENGTH,), generator=drawn) for _ in range(count))
    ]


def told(losses: list[float], memory: MemoryLimit) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"losses": losses, "peak": memory.peak_bytes}))
