"""`tile_mlp` refuses what mixes tokens in the first call, tiles what does not, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ckpt_surgery import SurgeryError
from ckpt_surgery.long_sequences.tiled import tile_mlp
from ckpt_surgery.runtime.tools.rng import generator_state
from tests.zoo.tiled_toys import WIDTH, Gated, gated, given

pytestmark = pytest.mark.both
ROUNDING = 1e-12
MIXES = "it mixes tokens: its results for 4 tokens together differ from those for each alone"


class Act(Gated):
    """An MLP that applies a given function to itself and an ordinary MLP's result."""

    def __init__(self, act: Callable[[Any, Tensor], Tensor], dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.act = act
        self.norm = nn.LayerNorm(WIDTH)
        self.table: dict[str, Any] = {}
        self.calls = 0
        self.register_buffer("total", torch.zeros(WIDTH))

    def forward(self, values: Tensor) -> Tensor:
        return self.act(self, super().forward(values))


def acting(act: Callable[[Any, Tensor], Tensor], **options: Any) -> Act:
    torch.manual_seed(0)
    return Act(act, **options).double()


def in_a_dictionary(act: Act, values: Tensor) -> Tensor:
    act.table["sum"] = values.detach().sum(-2, keepdim=True) + act.table.get("sum", 0)
    return values.mul(act.table["sum"])


def in_a_buffer(act: Act, values: Tensor) -> Tensor:
    total = act.get_buffer("total")
    return values + total.add_(values.detach().sum((0, -2)))


def batch_norm(act: Act, values: Tensor) -> Tensor:
    mean, variance = act.norm.bias.detach().clone(), act.norm.weight.detach().clone()
    return functional.batch_norm(values.mT, mean, variance, training=act.training).mT


def positions(act: Act, values: Tensor) -> Tensor:
    return values + torch.arange(values.shape[-2], dtype=values.dtype)[:, None]


MIXING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "shift by ZeroPad2d": lambda _, values: nn.ZeroPad2d((0, 0, 1, -1))(values),
    "mean over tokens": lambda _, values: values - values.mean(-2, keepdim=True),
    "cumulated": lambda _, values: values.cumsum(-2),
    "rolled": lambda _, values: values.roll(1, -2),
    "positions": positions,
    "attention": lambda _, v: functional.scaled_dot_product_attention(v, v, v),
    "dictionary": in_a_dictionary,
    "buffer": in_a_buffer,
    "mixing behind dropout": lambda act, v: functional.dropout(v, 0.5, act.training).cumsum(-2),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_tokens_is_refused_in_the_first_call(name: str, gradients: bool) -> None:
    module = acting(MIXING[name])
    tile_mlp(module, num_shards=3)
    why = "its forward writes into its input or into a buffer" if name == "buffer" else MIXES
    with torch.set_grad_enabled(gradients), pytest.raises(SurgeryError, match=why):
        module(given())
    assert (module.table, module.calls) == ({}, 0)
    assert not module.get_buffer("total").any()


def test_a_module_that_mixes_tokens_only_in_training_is_refused_there() -> None:
    module = acting(batch_norm).eval()
    tile_mlp(module, num_shards=3)
    module(given())
    module.train()
    with pytest.raises(SurgeryError, match=r"not on 4 or one \(ValueError: Expected more than 1 value per channel"):
        module(given())


def noise(act: Act, values: Tensor) -> Tensor:
    return values + torch.randn_like(values) + torch.rand(values.shape, dtype=values.dtype)


def counted(act: Act, values: Tensor) -> Tensor:
    act.calls += 1
    return values


ALONE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "dropout": lambda act, v: functional.dropout(v, 0.5, act.training),
    "jitter": lambda _, v: v * torch.empty_like(v).uniform_(0.9, 1.1),
    "normal noise": lambda _, v: v * torch.empty_like(v).normal_(1.0, 0.1),
    "bernoulli": lambda act, v: v * torch.bernoulli(torch.full_like(v, 0.5)),
    "noise": noise,
    "counter": counted,
    "Softmax over features": lambda act, v: v.softmax(-1),
    "convolution of one token": lambda act, v: functional.conv1d(v.mT, act.up.weight[:WIDTH, :, None]).mT,
    "not a number": lambda act, v: v / 0,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALONE)
def test_what_treats_each_token_alone_is_tiled(name: str, dtype: torch.dtype) -> None:
    module = acting(ALONE[name], dropout=0.3).to(dtype)
    with tile_mlp(module, num_shards=3):
        assert module(given().to(dtype)).shape == given().shape
        module.eval()(given(7, WIDTH).to(dtype))


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators of a call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_probe_leaves_nothing_and_nobody_sees_it() -> None:
    module, calls = acting(noise, dropout=0.5), list[str]()
    module.up.register_forward_pre_hook(lambda *_: calls.append("hook"))
    hooks = module.up._forward_pre_hooks
    tile_mlp(module, num_shards=1)
    operators = []
    for _ in range(2):
        torch.manual_seed(0)
        with Seen() as seen, torch.no_grad():
            result = module(given())
        operators.append((seen.names, generator_state(), result.tolist()))
    assert operators[0] == operators[1]
    assert calls == ["hook"] * 2
    assert module.up._forward_pre_hooks is hooks


def test_a_probe_leaves_nothing_in_objects_either() -> None:
    def act(act: Any, values: Tensor) -> Tensor:
        act.table["deep"]["seen"].append(act.calls)
        act.holder.count += 1
        act.holder.sums.add_(1)
        return values + 0 * float(numpy.random.rand())

    module: Any = acting(act)
    module.table["deep"] = {"seen": []}
    module.holder = SimpleNamespace(count=0, sums=torch.zeros(2))
    tile_mlp(module, num_shards=1)
    numpy.random.seed(0)
    for calls in (1, 2):
        with torch.no_grad():
            module(given())
        assert module.table == {"deep": {"seen": [0] * calls}}
        assert (module.holder.count, module.holder.sums.tolist()) == (calls, [calls] * 2)
    assert numpy.random.rand() == numpy.random.RandomState(0).rand(3)[-1], "a number a call was drawn, and no other"


def test_a_module_that_needs_its_own_number_of_tokens_is_refused() -> None:
    module = acting(partial(lambda weight, act, v: weight @ v, torch.ones(6, 6, dtype=torch.float64)))
    tile_mlp(module, shard_size=6)
    with pytest.raises(SurgeryError, match=r"it runs on 6 tokens, and not on 4 or one \(RuntimeError"):
        module(given(2, 6, WIDTH))


def test_an_error_of_the_module_stays_its_own() -> None:
    tile_mlp(module := gated(), num_shards=3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(given(2, 7, WIDTH + 1))


def test_a_module_whose_hooks_bring_its_weights_is_tried_with_them() -> None:
    module = acting(lambda _, values: values.cumsum(-2))
    weight = module.up.weight
    module.up._parameters["weight"] = None
    module.up.register_forward_pre_hook(lambda up, _: up._parameters.__setitem__("weight", weight))
    tile_mlp(module, num_shards=3)
    with pytest.raises(SurgeryError, match=MIXES):
        module(given())
