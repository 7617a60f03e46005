"""Tiny models of transformers for tests of runtime surgery, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

LENGTH = 6
WORDS = 32


def llama(layers: int = 4, **options: Any) -> Any:
    """Build a Llama in training mode and float64; its weights are the same each time."""
    return _made(transformers.LlamaForCausalLM, llama_config(layers, **options))


def llama_config(layers: int = 4, **options: Any) -> Any:
    return transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        **options,
    )


def gpt_bigcode(layers: int = 3, **options: Any) -> Any:
    """Build a GPTBigCode, whose blocks transformers 4.57.6 never checkpoints."""
    config = transformers.GPTBigCodeConfig(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=layers, n_head=2, pad_token_id=0, **options
    )
    return _made(transformers.GPTBigCodeForCausalLM, config)


def t5(**options: Any) -> Any:
    """Build a T5, with an encoder and a decoder."""
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        **options,
    )
    return _made(transformers.T5ForConditionalGeneration, config)


def _made(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    return kind(config).double().train()


def tokens(rows: int = 2) -> dict[str, Tensor]:
    """Draw token ids and labels, both of shape (rows, LENGTH)."""
    ids = torch.randint(1, WORDS, (rows, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the decoder's blocks by name, also inside wrappers."""
    stack = next(module for path, module in model.named_modules() if path.rpartition(".")[2] in ("layers", "h"))
    return dict(stack.named_children())
