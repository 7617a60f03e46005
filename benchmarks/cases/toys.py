"""The blocks, models and training steps that the cases share. What a step prints is compared to the last digit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same."""
        return x + self.down(torch.tanh(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Blocks of one kind with fixed weights; `call` runs one of them, and may checkpoint it."""

    def __init__(
        self, kind: Callable[[], nn.Module], call: Callable[..., Tensor] | None = None, depth: int = 3
    ) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.project = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(kind() for _ in range(depth))
        self.head = nn.Linear(16, 4)
        self.call = call or (lambda block, *arguments: block(*arguments))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., 4] to the same."""
        x = self.project(x)
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x)  # type: ignore[no-any-return]


def llama(**options: object) -> nn.Module:
    """Make a Llama of three layers in training mode, always of the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    torch.manual_seed(0)
    config = LlamaConfig(**{"vocab_size": 64, "num_hidden_layers": 3, "pad_token_id": 0, **sizes, **options})
    return LlamaForCausalLM(config).train()  # type: ignore[no-any-return]


def tokens() -> dict[str, Tensor]:
    """Make a batch for a language model: token ids of shape [2, 12], which are the labels too."""
    ids = torch.arange(1, 25).reshape(2, 12)
    return {"input_ids": ids, "labels": ids}


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that ask for a gradient."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def fit(
    model: nn.Module,
    loss_of: Callable[[], Tensor] | None = None,
    steps: int = 4,
    *,
    seed: int = 0,
    quiet: bool = False,
) -> list[float]:
    """Train with SGD, on `tokens` unless `loss_of` gives the loss, and return the losses.

    Prints loss and gradient of each step unless it is to be `quiet`, as where several ranks train.
    """
    optimizer, losses = torch.optim.SGD(trained(model), lr=0.1, foreach=False), []
    for step in range(steps):
        torch.manual_seed(seed + step)
        loss = loss_of() if loss_of else model(**tokens()).loss
        loss.backward()
        losses.append(loss.item())
        if not quiet:
            norms = [p.grad.norm().item() for p in trained(model) if p.grad is not None]
            print("step", step, "loss", losses[-1], "gradient", sum(norms), "of", len(norms), flush=True)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def squares(model: nn.Module) -> Callable[[], Tensor]:
    """Return the loss of a `Stack` on random vectors."""
    return lambda: model(torch.randn(4, 8, 4)).square().mean()


def kept_bytes(run: Callable[[], object]) -> int:
    """Return what a forward saves for its backward, in bytes."""
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return total
