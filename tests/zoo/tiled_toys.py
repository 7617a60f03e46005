"""Small models with MLPs to tile, in float64, so that rounding is no excuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8
MIDDLE = 24


class Gated(nn.Module):
    """An MLP as in most language models."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, MIDDLE)
        self.up = nn.Linear(WIDTH, MIDDLE)
        self.down = nn.Linear(MIDDLE, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.down(self.dropout(nn.functional.silu(self.gate(values)) * self.up(values)))
        return result


class Layer(nn.Module):
    """A block around an MLP."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.mlp = mlp

    def forward(self, values: Tensor) -> Tensor:
        mixed = values + self.mix(values).mean(-2, keepdim=True)
        result: Tensor = mixed + self.mlp(mixed)
        return result


class Towers(nn.Module):
    """Two layers with an MLP each or one `shared`, and a parameter that is used unless `unused`."""

    def __init__(self, *, shared: bool = False, unused: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        mlps = [Gated(dropout), Gated(dropout)]
        self.layers = nn.ModuleList(Layer(mlps[0 if shared else place]) for place in range(2))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self._unused = unused

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values)
        return values if self._unused else values * self.scale


def towers(**options: Any) -> Towers:
    """Build them the same each time, in training."""
    torch.manual_seed(0)
    return Towers(**options).double()


def adapted() -> nn.Module:
    """Build two layers under LoRA: the base is frozen, and both matrices of each adapter are other than zero."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(towers(), LoraConfig(target_modules=["gate", "up", "down"], r=2, lora_alpha=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    module: nn.Module = model.double().train()
    return module


SIZES = {
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "vocab_size": 32,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 1,
    "use_cache": False,
}
"""Of a tiny model; those of GPT-2 have other names."""
GPT2 = {
    "n_embd": 16,
    "n_inner": 40,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 64,
    "vocab_size": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def released(name: str) -> Any:
    """Build a tiny random model of transformers without dropout, in float64 and in training."""
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    config = kind.config_class(**(GPT2 if name.startswith("GPT2") else SIZES))
    return kind(config).double().train()


def ids() -> Tensor:
    """Return two sequences of seven tokens for it."""
    return torch.randint(2, 32, (2, 7), generator=torch.Generator().manual_seed(1))


def gated(**options: Any) -> Gated:
    """Build it the same each time, in training."""
    torch.manual_seed(0)
    return Gated(**options).double()


def given(*shape: int) -> Tensor:
    """Return an input that requires gradient: two sequences of seven tokens by default."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape or (2, 7, WIDTH), generator=generator, dtype=torch.float64).requires_grad_()


def gradients_of(
    module: nn.Module, values: Tensor, run: Callable[[Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """Take a step; return the result and the gradients of the input and, by name, of parameters."""
    values.grad = None
    module.zero_grad()
    torch.manual_seed(0)
    result = (run or module)(values)
    if result.requires_grad:
        torch.autograd.backward(result.square().sum())
    results = {"result": result.detach(), "values": values.grad, **{n: p.grad for n, p in module.named_parameters()}}
    return {name: gradient for name, gradient in results.items() if gradient is not None}


def farthest(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Return the largest absolute difference; infinite where one has a gradient that the other lacks."""
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours if ours[name].numel())
