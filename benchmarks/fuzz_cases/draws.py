"""Features that draw random numbers, from every generator that a block may use."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.fuzz_cases.feature import Feature, scaled


class TorchNoise(Feature):
    """Noise from torch's global generator."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden * (1 + 0.3 * torch.rand_like(hidden))


class Gumbel(Feature):
    """A random choice of channels, with a straight-through gradient."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + functional.gumbel_softmax(hidden, hard=True)


class TorchDraw(Feature):
    """Skips its part by a number from torch's global generator."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.tanh(hidden) if torch.rand(()).item() < 0.5 else hidden


class PythonDraw(Feature):
    """A number from Python's global generator."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, random.gauss(0, 1))


class PythonLayerDrop(Feature):
    """Skips its part by a number from Python's global generator."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return torch.tanh(hidden) if random.random() < 0.5 else hidden


class PythonShuffle(Feature):
    """Permutes channels with Python's global generator."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        order = list(range(hidden.shape[-1]))
        random.shuffle(order)
        return hidden[..., order]


class NumpyDraw(Feature):
    """Noise from NumPy's global generator."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        noise = torch.from_numpy(numpy.random.rand(hidden.shape[-1])).to(hidden.dtype)
        return scaled(hidden, noise)


class OwnTorchGenerator(Feature):
    """A generator of torch on the block."""

    def build(self, block: Any, index: int) -> None:
        block.generator = torch.Generator().manual_seed(index)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, torch.randn(hidden.shape[-1], generator=block.generator))


class OwnNumpyGenerator(Feature):
    """A generator of NumPy on the block, of the new kind or the old."""

    def build(self, block: Any, index: int) -> None:
        make = self._rng.choice([numpy.random.default_rng, numpy.random.RandomState])
        block.numpy_generator = make(index)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, float(block.numpy_generator.normal()))


class OwnPythonGenerator(Feature):
    """A generator of Python on the block."""

    def build(self, block: Any, index: int) -> None:
        block.python_generator = random.Random(index)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, block.python_generator.gauss(0, 1))


class GeneratorInDict(Feature):
    """Generators of torch and of Python in a dictionary on the block."""

    def build(self, block: Any, index: int) -> None:
        block.generators = {"torch": torch.Generator().manual_seed(index), "others": [random.Random(index)]}

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        drawn = torch.rand((), generator=block.generators["torch"]).item()
        return scaled(hidden, drawn + block.generators["others"][0].random())


class OutsideGenerator(Feature):
    """A generator of torch that is neither on the block nor an argument."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.generator = torch.Generator().manual_seed(5)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return scaled(hidden, torch.randn(hidden.shape[-1], generator=self.generator))


class GeneratorArgument(Feature):
    """A generator that the block is given: torch's, NumPy's or Python's."""

    argument = "generator"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.kind = rng.choice(["torch", "numpy", "python"])
        self.given: Any = {
            "torch": torch.Generator().manual_seed(7),
            "numpy": numpy.random.default_rng(7),
            "python": random.Random(7),
        }[self.kind]

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.given

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        drawn = torch.rand((), generator=value).item() if self.kind == "torch" else value.random()
        return scaled(hidden, float(drawn))


class Reseeding(Feature):
    """Seeds torch's global generator itself, and draws."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        torch.default_generator.manual_seed(int(hidden.shape[-1]))
        return hidden * (1 + 0.3 * torch.rand_like(hidden))


class ForkedDraw(Feature):
    """Draws inside a fork of the global generator."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            noise = torch.rand_like(hidden)
        return hidden * (1 + 0.3 * noise)


class Distribution(Feature):
    """Samples from distributions: reparametrised, by indices, and a permutation."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        sampled = torch.distributions.Normal(hidden, torch.ones_like(hidden)).rsample()
        chosen = torch.multinomial(torch.ones(hidden.shape[-1]), 4)
        return (sampled * 0.1 + hidden)[..., torch.randperm(hidden.shape[-1])] + hidden[..., chosen].mean(-1, True)


class DrawInHook(Feature):
    """A forward hook on a part of the block draws noise, from torch's generator or from NumPy's."""

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            layer.up.register_forward_hook(self._noise)

    def _noise(self, module: Any, args: Any, output: Tensor) -> Tensor:
        noise = (
            torch.rand(output.shape[-1]) if self._variant else torch.from_numpy(numpy.random.rand(output.shape[-1]))
        )
        return output * (1 + 0.3 * noise.to(output.dtype))


class GeneratorInArgument(GeneratorArgument):
    """The same generators, in an attribute of an object among the arguments."""

    argument = "sampler"

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return SimpleNamespace(inner=[self.given])

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return super().run(block, hidden, value.inner[0])
