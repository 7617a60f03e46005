"""Models shaped like other libraries': stages of blocks, a dictionary around a stack, blocks as attributes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

WIDTH = 4


class FeedBlock(nn.Module):
    """A block whose name does not tell that it is one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.act = nn.Tanh()
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = x + self.second(self.act(self.first(x)))
        return moved


class Attention(FeedBlock):
    """One of two kinds of layers that alternate in a list."""


class OtherBlock(FeedBlock):
    """A block of which a model has one."""


class Reduction(FeedBlock):
    """A layer between stages."""


class Stage(nn.Module):
    """Blocks in a row."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(FeedBlock() for _ in range(blocks)))
        self.reduce = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        reduced: Tensor = self.reduce(self.blocks(x))
        return reduced


def around_single_layers() -> nn.Module:
    """Build a block as ConvMixer does: a module and, in a `Sequential` beside it, single layers."""
    return nn.Sequential(FeedBlock(), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())


class Recurrent(nn.Module):
    """Layers of LSTM in a list, with nothing around them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)[0]
        return x


class Cells(nn.Module):
    """Recurrent cells in a list, each run once for every step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.GRUCell(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        states: list[Tensor | None] = [None] * len(self.layers)
        outputs = []
        for step in x.unbind():
            output = step[None]
            for place, cell in enumerate(self.layers):
                states[place] = output = cell(output, states[place])
            outputs.append(output)
        return torch.cat(outputs)


class Branches(nn.Module):
    """A block as in GoogLeNet: the sum of branches, some of them sequences of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.branch1 = nn.Linear(WIDTH, WIDTH)
        self.branch2 = nn.Sequential(OtherBlock(), OtherBlock())
        self.branch3 = nn.Sequential(nn.Tanh(), OtherBlock())

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.branch1(x) + self.branch2(x) + self.branch3(x)
        return total


class FlaggedStage(Stage):
    """A stage with a method that checkpoints its blocks if its flag says so."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)

    def features(self, x: Tensor) -> Tensor:
        if self.grad_checkpointing:
            x = checkpoint_sequential(self.blocks, len(self.blocks), x, use_reentrant=False)  # type: ignore[no-untyped-call]
        else:
            x = self.blocks(x)
        reduced: Tensor = self.reduce(x)
        return reduced


class Chain(nn.Module):
    """A model that runs its parts one after the other, in the given order."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            for step in part if isinstance(part, nn.ModuleList) else [part]:
                x = step(x)
        return x


class SwitchableChain(Chain):
    """A model with timm's switch."""

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for part in self.modules():
            if isinstance(part, FlaggedStage):
                part.grad_checkpointing = enable


class Namespace(nn.Module):
    """A model that keeps its stack in a dictionary, beside other things."""

    def __init__(self) -> None:
        super().__init__()
        blocks = nn.ModuleList(FeedBlock() for _ in range(3))
        self.transformer = nn.ModuleDict({"enter": nn.Linear(WIDTH, WIDTH), "blocks": blocks, "norm": nn.Tanh()})

    def forward(self, x: Tensor) -> Tensor:
        x = self.transformer["enter"](x)
        for block in self.transformer["blocks"]:  # type: ignore[attr-defined]
            x = block(x)
        result: Tensor = self.transformer["norm"](x)
        return result


class Library(Chain):
    """A model with a stack and, in no list, a part checkpointed with diffusers' function and flag."""

    _supports_gradient_checkpointing = True

    def __init__(self) -> None:
        super().__init__(middle=SelfCheckpointing(), blocks=nn.ModuleList(FeedBlock() for _ in range(3)))

    def enable_gradient_checkpointing(self, function: Callable[..., Any] | None = None) -> None:
        self._set_gradient_checkpointing(True, function or partial(checkpoint, use_reentrant=False))

    def disable_gradient_checkpointing(self) -> None:
        self._set_gradient_checkpointing(False)

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable[..., Any] = checkpoint
    ) -> None:
        for module in self.modules():
            if isinstance(module, SelfCheckpointing):
                module._gradient_checkpointing_func = gradient_checkpointing_func
                module.gradient_checkpointing = enable


class SelfCheckpointing(nn.Module):
    """A model that checkpoints its only part itself."""

    _gradient_checkpointing_func: Any

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.part = OtherBlock()

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.gradient_checkpointing:
            through: Tensor = self._gradient_checkpointing_func(self.part, x)
            return through
        plain: Tensor = self.part(x)
        return plain


def blocks(count: int = 3, kind: Callable[[], nn.Module] = FeedBlock) -> nn.ModuleList:
    return nn.ModuleList(kind() for _ in range(count))


def values() -> Tensor:
    """Make an input for all of these, shape (batch, width)."""
    return torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)
