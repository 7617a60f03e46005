"""`tile_mlp` done and undone: copies, refusals, real models, and both orders with `wrap_blocks`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.long_sequences.tiled import tile_mlp
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.zoo.tiled_toys import WIDTH, Gated, farthest, gated, given, gradients_of, ids, released, towers

pytestmark = pytest.mark.torch
ROUNDING = 1e-12
RELEASED = ["LlamaForCausalLM", "GPT2LMHeadModel", "GemmaForCausalLM"]


def mlps(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if name.endswith("mlp")]


def text_gradients(model: Any, run: Callable[..., Any] | None = None) -> dict[str, Tensor]:
    model.zero_grad()
    loss = (model if run is None else run)(input_ids=ids(), labels=ids()).loss
    loss.backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_train_and_generate_as_they_did(name: str) -> None:
    model = released(name)
    expected, written = text_gradients(model), generated(model)
    with tile_mlp(mlps(model), num_shards=3):
        assert farthest(expected, text_gradients(model)) < ROUNDING
        assert torch.equal(generated(model), written)


def generated(model: Any) -> Tensor:
    model.eval()
    tokens: Tensor = model.generate(ids(), max_new_tokens=5, do_sample=False, pad_token_id=0)
    model.train()
    return tokens


def selective() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])  # type: ignore[no-untyped-call]


CHECKPOINTING: dict[str, Callable[[nn.Module], object]] = {
    "theirs": lambda model: switch_checkpointing(model, "non_reentrant"),
    "theirs, reentrant": lambda model: switch_checkpointing(model, "reentrant"),
    "ours": wrap_blocks,
    "ours, selective": lambda model: wrap_blocks(model, context_fn=selective),
    "ours, offloaded": lambda model: wrap_blocks(model, offload="cpu"),
}


@pytest.mark.parametrize("first", [True, False], ids=["tiled first", "tiled last"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("way", CHECKPOINTING)
def test_mlps_in_checkpointed_blocks(way: str, wide: bool, first: bool) -> None:
    model = released("LlamaForCausalLM")
    if wide:
        model.bfloat16()
    plain = text_gradients(model)
    with tile_mlp(mlps(model), num_shards=3, fp32_accumulate=wide):
        tiled = text_gradients(model)
    if not first:
        CHECKPOINTING[way](model)
    tiling = tile_mlp(mlps(model), num_shards=3, fp32_accumulate=wide)
    if first:
        CHECKPOINTING[way](model)
    entered = [0]
    model.model.layers[0].mlp.act_fn.register_forward_pre_hook(lambda *_: entered.__setitem__(0, entered[0] + 1))
    assert farthest(tiled, text_gradients(model)) < ROUNDING
    # the block runs twice, and then each of three shards once more; without reentrance it may stop before the last
    assert entered == [9 if "reentrant" in way else 8]
    assert wide or farthest(tiled, plain) < ROUNDING
    tiling.undo()
    assert farthest(plain, text_gradients(model)) < ROUNDING


class Stacked(nn.Module):
    """A model whose blocks are MLPs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(2))

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


@pytest.mark.parametrize("undone_first", ["tiling", "surgery"])
@pytest.mark.parametrize("done_first", ["tiling", "surgery"])
def test_modules_that_are_wrapped_blocks_themselves(done_first: str, undone_first: str) -> None:
    torch.manual_seed(0)
    model, values = Stacked().double(), given()
    expected = gradients_of(model, values)
    done: dict[str, Any] = {}
    for name in sorted(("tiling", "surgery"), key=lambda name: name != done_first):
        done[name] = tile_mlp(model.layers.children(), num_shards=3) if name == "tiling" else wrap_blocks(model)
        assert farthest(expected, gradients_of(model, values)) < ROUNDING
    for name in sorted(done, key=lambda name: name != undone_first):
        done[name].undo()
        assert farthest(expected, gradients_of(model, values)) < ROUNDING
    again = tile_mlp(model.layers.children(), num_shards=3)
    assert farthest(expected, gradients_of(model, values)) < ROUNDING
    again.undo()
    assert not any("forward" in vars(layer) for layer in model.layers)


def test_a_tiling_says_what_it_holds_and_is_undone_once() -> None:
    model = towers(shared=True)
    tree, keys = repr(model), list(model.state_dict())
    with tile_mlp((layer.get_submodule("mlp") for layer in model.layers), num_shards=3) as tiling:
        assert str(tiling) == "1 x Gated in 3 shards"
        assert tiling.modules == (model.layers[0].mlp,)
        assert (repr(model), list(model.state_dict())) == (tree, keys)
        assert type(model.layers[0].mlp) is Gated
    assert "forward" not in vars(model.layers[0].mlp)
    assert str(tiling) == "1 x Gated in 3 shards, undone"
    with pytest.raises(SurgeryError, match="undone before"):
        tiling.undo()
    assert str(tile_mlp(mlps(towers()), shard_size=4)) == "2 x Gated in shards of 4 tokens"


def test_a_forward_of_the_instance_comes_back_and_one_put_over_it_stays() -> None:
    module, values = gated(), given()
    vars(module)["forward"] = before = lambda values: Gated.forward(module, values) * 2
    expected = gradients_of(module, values)
    tiling = tile_mlp(module, num_shards=3)
    assert farthest(expected, gradients_of(module, values)) < ROUNDING
    tiling.undo()
    assert vars(module)["forward"] is before
    tiling = tile_mlp(module, num_shards=3)
    tiled = vars(module)["forward"]
    vars(module)["forward"] = over = lambda values: tiled(values) * 1
    tiling.undo()
    assert vars(module)["forward"] is over
    assert farthest(expected, gradients_of(module, values)) < ROUNDING


def test_copies_and_pickles_are_tiled_by_themselves() -> None:
    module, values = gated(), given()
    expected = gradients_of(module, values)
    tiling = tile_mlp(module, num_shards=3)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    tiling.undo()
    for copied in copies:
        assert vars(copied)["forward"].module is copied
        assert farthest(expected, gradients_of(copied, values)) < ROUNDING
        assert copied.state_dict().keys() == module.state_dict().keys()


def test_compiled_models_train_as_they_did() -> None:
    model = released("LlamaForCausalLM")
    expected = text_gradients(model)
    tile_mlp(mlps(model), num_shards=3)
    wrap_blocks(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert farthest(expected, text_gradients(model, compiled)) < ROUNDING


def compiled() -> Gated:
    module = gated()
    module.compile()
    return module


def tiled() -> Gated:
    module = gated()
    tile_mlp(module, num_shards=2)
    return module


WRONG_MODULES: list[tuple[Callable[[], Any], str]] = [  # made in the test: torch.compile imports for seconds
    (lambda: "mlp", "the module is of type str"),
    (lambda: [gated(), None], "the module is of type NoneType"),
    (list, "no module to tile"),
    (lambda: nn.ModuleList([gated()]), "ModuleList has no forward: give its members"),
    (lambda: DataParallel(gated()), "give the MLPs in it"),
    (lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(7)), "1 of Sequential is a BatchNorm1d"),
    (lambda: Gated().to("meta"), "on the meta device"),
    (compiled, "Gated is compiled already"),
    (lambda: torch.compile(gated()), "compiled already"),
    (tiled, "Gated is tiled already"),
    (lambda: nn.Sequential(tiled()), "0 of Sequential is tiled already"),
    (lambda: ((model := towers().layers[0]), model.get_submodule("mlp")), "Layer holds another module to be tiled"),
]


@pytest.mark.parametrize(("make", "text"), WRONG_MODULES, ids=[text for _, text in WRONG_MODULES])
def test_modules_that_cannot_be_tiled_are_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(SurgeryError, match=text):
        tile_mlp(make(), num_shards=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give one of the two"),
        ({"num_shards": 2, "shard_size": 2}, "give one of the two"),
        ({"num_shards": 0}, "num_shards is 0"),
        ({"shard_size": -1}, "shard_size is -1"),
        ({"shard_size": 2.0}, "shard_size is 2.0"),
        ({"num_shards": 2, "fp32_accumulate": 1}, "fp32_accumulate is 1"),
    ],
)
def test_options_that_mean_nothing_are_refused_and_nothing_is_changed(options: dict[str, Any], text: str) -> None:
    module = gated()
    with pytest.raises(SurgeryError, match=text):
        tile_mlp(module, **options)
    assert "forward" not in vars(module)


class Odd(Gated):
    """An MLP that applies a given function to itself and its input."""

    def __init__(self, act: Callable[[Odd, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.act = act
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values: Tensor, more: Tensor | None = None) -> Any:
        return self.act(self, values, super().forward(values))


def written(odd: Odd, values: Tensor, result: Tensor) -> Tensor:
    odd.get_buffer("seen").add_(1)
    return result


def overwritten(odd: Odd, values: Tensor, result: Tensor) -> Tensor:
    with torch.no_grad():
        values.zero_()
    return result


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda odd, values, result: (result, values), "it made a tuple of a shard of shape"),
        (lambda odd, values, result: result.sum(), "it made shape ()"),
        (lambda odd, values, result: result[..., :1, :], "and not one tensor with the same leading shape"),
        (written, "writes into its input or into a buffer"),
        (overwritten, "writes into its input or into a buffer"),
    ],
)
def test_what_is_no_mlp_is_refused_in_the_call(act: Callable[..., Any], text: str, gradients: bool) -> None:
    module = Odd(act).double()
    tile_mlp(module, num_shards=3)
    with torch.set_grad_enabled(gradients), pytest.raises(SurgeryError, match=text):
        module(given())


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((given(),), {"more": None}, "3-D tensor, NoneType"),
        ((), {}, r"called with \(\)"),
        ((given(WIDTH),), {}, "called with .1-D tensor."),
    ],
)
def test_calls_with_other_than_one_tensor_are_refused(args: Any, kwargs: Any, text: str) -> None:
    module = Odd(lambda odd, values, result: result).double()
    with tile_mlp(module, num_shards=3):
        with pytest.raises(SurgeryError, match=text):
            module(*args, **kwargs)
        assert torch.equal(module(values=given()), module(given()))


def stepped(module: Gated) -> None:
    with torch.no_grad():
        module.up.weight.add_(1)


def swapped(module: Gated) -> None:
    module.up.weight = nn.Parameter(torch.zeros_like(module.up.weight))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (nn.Module.eval, "put into evaluation mode between forward and backward"),
        (stepped, "replaced or modified in place between"),
        (swapped, "replaced or modified in place between"),
    ],
)
def test_a_module_that_changed_before_the_backward_is_refused(change: Callable[[Gated], Any], text: str) -> None:
    module = gated()
    tile_mlp(module, num_shards=3)
    result = module(given())
    change(module)
    with pytest.raises(SurgeryError, match=text):
        result.sum().backward()
