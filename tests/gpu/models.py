"""Small random models of released families, with a batch, for tests on a device."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("LlamaConfig", {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128}),
    "GPTBigCodeForCausalLM": ("GPTBigCodeConfig", {"n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 128}),
    "MixtralForCausalLM": (
        "MixtralConfig",
        {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "output_router_logits": True},
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4, "d_kv": 16, "decoder_start_token_id": 0},
    ),
}
"""The model class, its configuration class, and the settings beside a small vocabulary."""
DROPOUT: dict[str, Any] = {"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}


def model_of(name: str, device: str, attention: str = "eager", **options: Any) -> nn.Module:
    """Build a random model, always the same, in training, on `device`, with this implementation of attention."""
    config_class, sizes = SIZES[name]
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2} if "hidden_size" in sizes else {}
    config = getattr(transformers, config_class)(vocab_size=96, use_cache=False, **heads, **sizes, **options)
    config._attn_implementation = attention
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, name)(config)
    return model.to(device).train()


def batch(device: str, tokens: int = 32) -> dict[str, Tensor]:
    """Draw token ids and labels, (2, tokens) each."""
    ids = torch.randint(2, 96, (2, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    return {"input_ids": ids, "labels": ids}


def gradients(model: nn.Module, inputs: dict[str, Tensor], seed: int = 2) -> dict[str, Tensor]:
    """Take a step from a seed; return the gradients by parameter name."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    torch.autograd.backward(model(**inputs).loss)
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Compare gradients up to float32 rounding: reentrant sums come in another order."""
    return one.keys() == other.keys() and all(
        float((one[name] - other[name]).abs().max()) <= 1e-5 * float(other[name].abs().max()) for name in one
    )


def near(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Compare gradients up to rounding: kernels may add up in any order."""
    return one.keys() == other.keys() and all(
        float((one[name] - other[name]).float().norm()) <= 2e-2 * float(other[name].float().norm()) for name in one
    )
