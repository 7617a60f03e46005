"""Features that are parts of a block: its layers, its state, what it draws, and what is done around its parts."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from benchmarks.fuzz_cases.feature import FEATURES, Feature, Make, linear, nothing, of_kind, parts, scaled

# layers


def _attention(block: Any, hidden: Any) -> Any:
    query, key, values = block.project(hidden).chunk(3, dim=-1)
    return hidden + functional.scaled_dot_product_attention(query, key, values, is_causal=True)


def _branch(block: Any, hidden: Any) -> Any:
    layer = block.left if float(hidden.detach().sum()) > 0 else block.right
    return hidden + torch.tanh(layer(hidden))


_LAYERS = parts(
    {
        "SelfAttention": (lambda: {"project": nn.Linear(FEATURES, 3 * FEATURES)}, _attention),
        "LayerNorm": (lambda: {"norm": nn.LayerNorm(FEATURES)}, lambda block, hidden: block.norm(hidden)),
        "BatchNorm": (
            lambda: {"batch_norm": nn.BatchNorm1d(FEATURES)},
            lambda block, hidden: block.batch_norm(hidden.transpose(1, 2)).transpose(1, 2),
        ),
        "Dropout": (lambda: {"dropout": nn.Dropout(0.3)}, lambda block, hidden: block.dropout(hidden)),
        "DropoutFunction": (nothing, lambda block, hidden: functional.dropout(hidden, 0.3, block.training)),
        "SpectralNorm": (
            lambda: {"spectral": spectral_norm(linear())},
            lambda block, hidden: hidden + torch.tanh(block.spectral(hidden)),
        ),
        "WeightNorm": (
            lambda: {"weight_normed": weight_norm(linear())},
            lambda block, hidden: hidden + torch.tanh(block.weight_normed(hidden)),
        ),
        "Branch": (lambda: {"left": linear(), "right": linear()}, _branch),
    }
)


class Unused(Feature):
    """A layer that only some calls use, so that its parameters get no gradient in others."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.used = rng.random() < 0.3

    def build(self, block: Any, index: int) -> None:
        block.sometimes = linear()

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden + torch.tanh(block.sometimes(hidden)) if self.used else hidden


# state


class Stateful(Feature):
    """A block that writes something in every call, which may change the hidden states."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.read = rng.random() < 0.6

    def write(self, block: Any, hidden: Tensor) -> Any:
        """Write the state; returns a number or a small tensor made of it."""
        raise NotImplementedError

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        state = self.write(block, hidden)
        return scaled(hidden, state) if self.read else hidden


class CountAttribute(Stateful):
    """A number on the block, or on a submodule that lacks it before the first call."""

    def write(self, block: Any, hidden: Tensor) -> Any:
        module = block if self._variant else block.up
        module.calls = getattr(module, "calls", 0) + 1
        return module.calls


class LargeBuffer(Stateful):
    """A buffer too large to copy needlessly, written in place in some calls only."""

    def build(self, block: Any, index: int) -> None:
        block.register_buffer("usage", torch.zeros(5000))
        block.usage_calls = 0

    def write(self, block: Any, hidden: Tensor) -> Any:
        block.usage_calls += 1
        if block.usage_calls >= (3 if self._variant else 1):
            block.usage[:FEATURES] += hidden.detach().float().abs().mean((0, 1))
        return block.usage[:FEATURES]


class Pair(NamedTuple):
    """State that is replaced."""

    calls: int
    last: float


def _average_on_block(block: Any, hidden: Tensor) -> Any:
    block.average = 0.9 * block.average + 0.1 * hidden.detach().mean((0, 1))
    return block.average


def _fill_bank(block: Any, hidden: Tensor) -> Tensor:
    block.bank[block.pointer] = hidden.detach().mean((0, 1))
    block.pointer = (block.pointer + 1) % 4
    filled: Tensor = block.bank.sum(0)
    return filled


def _replace_pair(block: Any, hidden: Tensor) -> int:
    block.pair_state = Pair(block.pair_state.calls + 1, float(hidden.detach().mean()))
    calls: int = block.pair_state.calls
    return calls


def _replace_function(block: Any, hidden: Tensor) -> float:
    gain: float = block.gain()
    block.gain = functools.partial(float, gain + 1)
    return gain


def _count_late(block: Any, hidden: Tensor) -> int:
    block.late_calls += 1
    calls: int = block.late_calls
    return max(calls - 2, 0)


def _make_table(block: Any, hidden: Tensor) -> Any:
    if block.lazy is None:
        block.lazy = torch.linspace(0, 1, hidden.shape[-1], dtype=hidden.dtype)
    return block.lazy


def _keep_on_block(block: Any, hidden: Tensor) -> Any:
    last = getattr(block, "kept", None)
    block.kept = hidden * 1
    return 0.0 if last is None else last.detach().mean()


def _remember(block: Any, hidden: Tensor) -> Any:
    last, block.memory = block.memory, hidden.detach().mean((0, 1))
    return last


_STATE_ROWS: dict[str, tuple[Make, Callable[[Any, Tensor], Any]]] = {
    "CountBuffer": (
        lambda: {"count": nn.Buffer(torch.zeros((), dtype=torch.long))},
        lambda block, hidden: block.count.add_(1),
    ),
    "MovingAverage": (lambda: {"average": nn.Buffer(torch.zeros(FEATURES))}, _average_on_block),
    "TensorAttribute": (lambda: {"bank": torch.zeros(4, FEATURES), "pointer": 0}, _fill_bank),
    "ReplacedTuple": (lambda: {"pair_state": Pair(0, 0.0)}, _replace_pair),
    "ReplacedFunction": (lambda: {"gain": functools.partial(float, 1)}, _replace_function),
    "LateState": (lambda: {"late_calls": 0}, _count_late),
    "LazyTable": (lambda: {"lazy": None}, _make_table),
    "KeptActivation": (nothing, _keep_on_block),
    "Memory": (lambda: {"memory": torch.zeros(FEATURES)}, _remember),
}


def _row(name: str, make: Make, write: Callable[[Any, Tensor], Any]) -> type[Stateful]:
    def build(feature: Feature, block: Any, index: int) -> None:
        for key, value in make().items():
            setattr(block, key, value)

    attributes = {"__doc__": name, "build": build, "write": lambda feature, block, hidden: write(block, hidden)}
    return type(name, (Stateful,), attributes)


_STATE = {name: _row(name, *row) for name, row in _STATE_ROWS.items()}


class LazyLayer(Feature):
    """A layer whose parameters are made in the first call."""

    def build(self, block: Any, index: int) -> None:
        block.lazy_layer = None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if block.lazy_layer is None:
            block.lazy_layer = nn.Linear(FEATURES, FEATURES, bias=False)
            nn.init.eye_(block.lazy_layer.weight)
        return torch.sin(block.lazy_layer(hidden))


# elsewhere

PLACES = ("block", "argument", "outside", "class")


class _Elsewhere(Stateful):
    """An object of a row of the table, at one of the places."""

    make: ClassVar[Callable[[], Any]]
    count: ClassVar[Callable[[Any, Tensor], Any]]

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._place = rng.choice(PLACES)
        self.state = type(self).make()

    def attach(self, model: Any) -> None:
        for layer in model.layers:
            if self._place == "block":
                setattr(layer, self.argument, type(self).make())
            elif self._place == "class":
                setattr(type(layer), self.argument, self.state)

    def value(self, model: Any, hidden: Tensor, index: int) -> Any:
        return self.state if self._place == "argument" else None

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        if self._place != "argument":
            value = self.state if self._place == "outside" else getattr(block, self.argument)
        count = type(self).count(value, hidden)
        return scaled(hidden, count) if self.read else hidden


def _counter() -> Callable[[], int]:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return count

    return tick


def _count_many(containers: Any, hidden: Tensor) -> int:
    recent, seen, kinds, groups, raw = containers
    recent.append(len(recent))
    seen.add(len(seen))
    kinds["calls"] += 1
    groups["a"].append(1)
    raw[0] += 1
    count: int = kinds["calls"]
    return count


def _count_list(values: list[Any], hidden: Tensor) -> int:
    values.append(float(hidden.detach().mean()))
    return len(values)


def _average(averages: dict[str, Tensor], hidden: Tensor) -> Tensor:
    averages["mean"] = 0.5 * averages["mean"] + hidden.detach().mean((0, 1))
    return averages["mean"]


def _keep(kept: list[Tensor], hidden: Tensor) -> float:
    kept[:] = [hidden * 1]
    return 0.0


_ELSEWHERE_ROWS: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Any]]] = {
    "CountingIterator": (lambda: itertools.count(1), lambda state, hidden: next(state)),
    "ClosureCount": (_counter, lambda state, hidden: state()),
    "Containers": (lambda: (deque([0], 2), {0}, Counter(calls=0), defaultdict(list), bytearray(1)), _count_many),
    "GrowingList": (list, _count_list),
    "TensorsInDict": (lambda: {"mean": torch.zeros(FEATURES)}, _average),
    "KeptInList": (list, _keep),
    "OwnTorchGenerator": (
        lambda: torch.Generator().manual_seed(7),
        lambda state, hidden: torch.rand((), generator=state),
    ),
    "OwnPythonGenerator": (lambda: random.Random(7), lambda state, hidden: state.random()),
}
_ELSEWHERE: dict[str, type[_Elsewhere]] = {
    name: type(
        name,
        (_Elsewhere,),
        {"__doc__": name, "argument": f"held_{name}", "make": staticmethod(make), "count": staticmethod(count)},
    )
    for name, (make, count) in _ELSEWHERE_ROWS.items()
}


# draws


def _numpy_draw(block: Any, hidden: Any) -> Any:
    return scaled(hidden, torch.from_numpy(numpy.random.rand(hidden.shape[-1])).to(hidden.dtype))


def _reseeding(block: Any, hidden: Any) -> Any:
    torch.default_generator.manual_seed(int(hidden.shape[-1]))
    return hidden * (1 + 0.3 * torch.rand_like(hidden))


_DRAWS = parts(
    {
        "TorchNoise": (nothing, lambda block, hidden: hidden * (1 + 0.3 * torch.rand_like(hidden))),
        "Gumbel": (nothing, lambda block, hidden: hidden + functional.gumbel_softmax(hidden, hard=True)),
        "TorchDraw": (nothing, lambda block, hidden: torch.tanh(hidden) if torch.rand(()).item() < 0.5 else hidden),
        "PythonDraw": (nothing, lambda block, hidden: scaled(hidden, random.gauss(0, 1))),
        "PythonLayerDrop": (nothing, lambda block, hidden: torch.tanh(hidden) if random.random() < 0.5 else hidden),
        "NumpyDraw": (nothing, _numpy_draw),
        "Reseeding": (nothing, _reseeding),
    }
)


class DrawInHook(Feature):
    """A forward hook on a part of the block that draws noise, from torch's generator or from NumPy's."""

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            layer.up.register_forward_hook(self._noise)

    def _noise(self, module: Any, args: Any, output: Tensor) -> Tensor:
        drawn = torch.rand if self._variant else lambda size: torch.from_numpy(numpy.random.rand(size))
        return output * (1 + 0.3 * drawn(output.shape[-1]).to(output.dtype))


# experts

EXPERTS = 4


class Experts(Feature):
    """A router that sends each token to its best two experts."""

    def build(self, block: Any, index: int) -> None:
        block.router = nn.Linear(FEATURES, EXPERTS)
        block.experts = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(EXPERTS))

    def logits(self, block: Any, tokens: Tensor) -> Tensor:
        """Return what the router gives each expert, of shape (tokens, experts)."""
        result: Tensor = block.router(tokens)
        return result

    def routed(self, block: Any, logits: Tensor, chosen: Tensor) -> None:
        """See the logits and the chosen experts, both of shape (tokens, _)."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        tokens = hidden.reshape(-1, hidden.shape[-1])
        logits = self.logits(block, tokens)
        weights, chosen = torch.topk(logits.softmax(-1), 2)
        self.routed(block, logits, chosen)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(block.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                change = torch.tanh(expert(tokens[token])) * weights[token, place, None]
                result = result.index_add(0, token, change.to(result.dtype))
        return hidden + result.view_as(hidden)


class DriftingExperts(Experts):
    """The router jitters with NumPy's generator: the recompute may choose other experts."""

    def logits(self, block: Any, tokens: Tensor) -> Tensor:
        noise = torch.from_numpy(numpy.random.rand(len(tokens), EXPERTS)).to(tokens.dtype)
        return super().logits(block, tokens) + noise


class CountingExperts(Experts):
    """The load of each expert is counted in a list outside the block."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.load: list[list[int]] = []

    def routed(self, block: Any, logits: Tensor, chosen: Tensor) -> None:
        self.load.append(chosen.reshape(-1).bincount(minlength=EXPERTS).tolist())


class BalancedExperts(Experts):
    """A buffer of biases is moved against the load."""

    def build(self, block: Any, index: int) -> None:
        super().build(block, index)
        block.register_buffer("bias", torch.zeros(EXPERTS))

    def logits(self, block: Any, tokens: Tensor) -> Tensor:
        logits: Tensor = super().logits(block, tokens) + block.bias
        return logits

    def routed(self, block: Any, logits: Tensor, chosen: Tensor) -> None:
        load = chosen.reshape(-1).bincount(minlength=EXPERTS)
        block.bias -= 0.2 * torch.sign(load - load.float().mean())


# graph


def _in_place(block: Any, hidden: Any) -> Any:
    own = hidden * 1.1
    own.mul_(0.9).add_(0.01)
    own[:, 0] = own[:, 1]
    return functional.relu(own, inplace=True) - 0.1 * own


def _detached(block: Any, hidden: Any) -> Any:
    with torch.no_grad():
        target = block.detached(hidden)
    return hidden * torch.sigmoid(target) + hidden.detach()


def _slope(layer: nn.Module, hidden: Any, *, create_graph: bool) -> Any:
    with torch.enable_grad():
        point = hidden if hidden.requires_grad else hidden.detach().requires_grad_()
        (slope,) = torch.autograd.grad(torch.tanh(layer(point)).square().sum(), point, create_graph=create_graph)
    return slope


def _gradient(block: Any, hidden: Any) -> Any:
    return hidden - 0.1 * _slope(block.energy, hidden, create_graph=False)


def _inner() -> nn.Module:
    return nn.Sequential(linear(), nn.Tanh(), nn.Dropout(0.2))


def _clipped(block: Any, hidden: Any) -> Any:
    hidden = hidden * 1
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
    return torch.sin(hidden)


def _swallowed(block: Any, hidden: Any) -> Any:
    try:  # torch ends a recompute early by an exception
        return torch.exp(-torch.sin(hidden).square())
    except Exception:
        return torch.cos(hidden)


_GRAPH = parts(
    {
        "InPlace": (nothing, _in_place),
        "InPlaceArgument": (nothing, lambda block, hidden: hidden.add_(0.1)),
        "Detached": (lambda: {"detached": linear()}, _detached),
        "StraightThrough": (nothing, lambda block, hidden: hidden + (hidden.round() - hidden).detach()),
        "NestedCheckpoint": (
            lambda: {"inner": _inner()},
            lambda block, hidden: hidden + checkpoint(block.inner, hidden, use_reentrant=False),
        ),
        "NestedReentrant": (
            lambda: {"inner_reentrant": _inner()},
            lambda block, hidden: hidden + checkpoint(block.inner_reentrant, hidden, use_reentrant=True),
        ),
        "Vectorised": (
            lambda: {"mapped": nn.Parameter(torch.eye(FEATURES) * 0.5)},
            lambda block, hidden: hidden + torch.vmap(lambda rows: torch.tanh(rows @ block.mapped))(hidden),
        ),
        "ClippedInside": (nothing, _clipped),
        "SwallowedErrors": (nothing, _swallowed),
        "GradInside": (lambda: {"energy": linear()}, _gradient),
        "GradInsideWithStatistics": (
            lambda: {"energy_norm": nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(FEATURES), linear())},
            lambda block, hidden: hidden - 0.1 * _slope(block.energy_norm, hidden, create_graph=True),
        ),
        "KeepingFunction": (nothing, lambda block, hidden: sum(_Scale.apply(hidden))),  # type: ignore[no-untyped-call]
    }
)


class _Scale(torch.autograd.Function):
    """A function that keeps its input on the context instead of saving it, with a second output without gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Any:
        ctx.values = values.detach().clone()
        signs = torch.sign(values)
        ctx.mark_non_differentiable(signs)
        ctx.save_for_backward(signs, values)
        return values * ctx.values.abs(), signs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        signs, _ = ctx.saved_tensors
        _, again = ctx.saved_tensors
        return gradients[0] * (ctx.values.abs() + again * signs)


# weights


class TiedParts(Feature):
    """One layer shared by all blocks."""

    def attach(self, model: Any) -> None:
        for layer in model.layers:
            layer.up = model.layers[0].up


class SameBlockTwice(Feature):
    """The first block is also the last."""

    def attach(self, model: Any) -> None:
        model.layers.append(model.layers[0])


class FrozenParts(Feature):
    """Some parameters of each block are frozen."""

    def build(self, block: Any, index: int) -> None:
        block.up.requires_grad_(False)


class FrozenBlock(Feature):
    """The first block is frozen, with everything before it or without."""

    def attach(self, model: Any) -> None:
        model.layers[0].requires_grad_(False)
        if self._variant:
            model.embed.requires_grad_(False)


class Codebook(Feature):
    """A frozen parameter that the block moves towards its inputs: vector quantisation."""

    def build(self, block: Any, index: int) -> None:
        codes = torch.randn(5, FEATURES)
        if self._variant:
            block.register_buffer("codes", codes)
        else:
            block.codes = nn.Parameter(codes, requires_grad=False)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        flat = hidden.detach().reshape(-1, FEATURES).to(block.codes.dtype)
        nearest = torch.cdist(flat, block.codes).argmin(1)
        quantised = block.codes[nearest].view_as(hidden).to(hidden.dtype)
        if block.training:
            with torch.no_grad():
                block.codes[nearest] = 0.8 * block.codes[nearest] + 0.2 * flat
        return hidden + 0.5 * (quantised - hidden).detach() * hidden


class MomentumEncoder(Feature):
    """A frozen copy of a layer that follows it."""

    def build(self, block: Any, index: int) -> None:
        block.student, block.teacher = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        block.teacher.requires_grad_(False)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        with torch.no_grad():
            for own, followed in zip(block.teacher.parameters(), block.student.parameters(), strict=True):
                (own.data if self._variant else own).lerp_(followed, 0.3)
        return block.student(hidden).tanh() * block.teacher(hidden).sigmoid() + hidden


# numerics


def _autocast(block: Any, hidden: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        low = torch.tanh(block.cast(hidden))
    return hidden + low.to(hidden.dtype)


def _complex(block: Any, hidden: Any) -> Any:
    pairs = torch.view_as_complex(hidden.float().unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.polar(torch.ones_like(block.angles), block.angles).to(pairs.dtype)
    return torch.view_as_real(turned).flatten(-2).to(hidden.dtype)


_NUMERICS = parts(
    {
        "AutocastInside": (lambda: {"cast": linear()}, _autocast),
        "LowPrecision": (
            lambda: {"low": linear().to(torch.bfloat16)},
            lambda block, hidden: hidden + torch.tanh(block.low(hidden.to(torch.bfloat16))).to(hidden.dtype),
        ),
        "Complex": (lambda: {"angles": nn.Parameter(torch.linspace(0, 1, FEATURES // 2))}, _complex),
        "DefaultDtype": (nothing, lambda block, hidden: hidden + torch.ones(hidden.shape[-1]).cumsum(0) / 10),
    }
)


class AutocastAround(Feature):
    """The model's forward, without its backward, in bfloat16."""

    def around(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16)


class KernelAround(Feature):
    """The model's forward, without its backward, with one kernel of attention."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.kernel = rng.choice([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])

    def around(self) -> AbstractContextManager[Any]:
        manager: AbstractContextManager[Any] = sdpa_kernel([self.kernel])
        return manager

    def build(self, block: Any, index: int) -> None:
        block.heads = nn.Linear(FEATURES, 3 * FEATURES)

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        parts = block.heads(hidden).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts)
        return hidden + mixed.transpose(1, 2).flatten(2)


class SavedTensorHooks(Feature):
    """Hooks that copy what the model's forward saves, and are gone in its backward."""

    def around(self) -> AbstractContextManager[Any]:
        return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor)


# hooks


class HookInside(Feature):
    """A forward hook on the block or a part of it that counts calls and changes the result."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0
        self.counts, self.changes = rng.choice([(True, False), (False, True), (True, True)])

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            (layer.up if self._variant else layer).register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, args: Any, output: Any) -> Any:
        self.calls += self.counts
        return output * 1.1 if self.changes and isinstance(output, Tensor) else None


class SideLossHook(Feature):
    """A forward hook that keeps a part's outputs with their graphs, for a term of the model's loss."""

    unjudged = frozenset({"captured"})

    def begin(self, model: Any) -> None:
        self.captured: list[Tensor] = []

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            layer.down.register_forward_hook(lambda module, args, output: self.captured.append(output.square().mean()))

    def added_loss(self) -> Tensor | None:
        return sum(self.captured[1:], self.captured[0])


class BackwardHook(Feature):
    """A full backward hook that scales the gradient, of the block or of a part."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0
        self.on_part = rng.random() < 0.5

    def attach(self, model: Any) -> None:
        for layer in dict.fromkeys(model.layers):
            (layer.up if self.on_part else layer).register_full_backward_hook(self._hook)

    def _hook(self, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        self.calls += 1
        return tuple(None if gradient is None else gradient * 0.5 for gradient in inputs)


class AccumulationHook(Feature):
    """A hook after the accumulation of a parameter's gradient; one of zeros does not count."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.calls = 0

    def attach(self, model: Any) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hook)

    def _hook(self, parameter: Any) -> None:
        self.calls += bool(parameter.grad.any())
        parameter.grad.mul_(0.5)


class OutputGradientHook(Feature):
    """The model clips the gradient between blocks."""

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
        return hidden


class InPlaceAfter(Feature):
    """The model writes into what a block returns."""

    def after_block(self, model: Any, hidden: Any, index: int) -> Any:
        return hidden.mul_(1.1)


KINDS: dict[str, dict[str, type[Feature]]] = {
    "layers": of_kind(_LAYERS, Unused),
    "state": of_kind(_STATE, CountAttribute, LargeBuffer, LazyLayer),
    "elsewhere": of_kind(_ELSEWHERE),
    "draws": of_kind(_DRAWS, DrawInHook),
    "experts": of_kind({}, Experts, DriftingExperts, CountingExperts, BalancedExperts),
    "graph": of_kind(_GRAPH),
    "weights": of_kind({}, TiedParts, SameBlockTwice, FrozenParts, FrozenBlock, Codebook, MomentumEncoder),
    "numerics": of_kind(_NUMERICS, AutocastAround, KernelAround, SavedTensorHooks),
    "hooks": of_kind({}, HookInside, SideLossHook, BackwardHook, AccumulationHook, OutputGradientHook, InPlaceAfter),
}
