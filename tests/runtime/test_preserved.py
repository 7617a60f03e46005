"""Everything else about a model stays: names, classes, copies, files, hooks, generation, compilation."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from ckpt_surgery import wrap_blocks
from ckpt_surgery.runtime.blocks.discovery import is_layer
from tests.rank_cases import Results, case_results
from tests.runtime.sharded_script import SIZE
from tests.zoo.surgery_toys import KEPT, ONCE, Step, differences, step
from tests.zoo.tiny_models import gpt_bigcode, layers_of, llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

MAKERS: list[Callable[[], Any]] = [llama, gpt_bigcode]
either_model = pytest.mark.parametrize("make", MAKERS)


def trained(model: nn.Module, seed: int = 0) -> Step:
    return step(model, tokens(), seed=seed, blocks=layers_of(model))


def checkpoints(model: nn.Module) -> bool:
    counts = set(trained(model).entries.values())
    assert counts in ({ONCE}, {KEPT})
    return counts == {ONCE}


@either_model
def test_names_classes_and_state_are_the_same(make: Callable[[], Any]) -> None:
    model, plain = make(), make()
    wrap_blocks(model)
    trained(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    for kind in ("modules", "parameters", "buffers"):
        named = [[name for name, _ in getattr(module, f"named_{kind}")()] for module in (model, plain)]
        assert named[0] == named[1]
    for block, other in zip(layers_of(model).values(), layers_of(plain).values(), strict=True):
        assert type(block) is type(other)
        assert (type(block).__name__, type(block).__module__) == (type(other).__name__, type(other).__module__)
        assert is_layer(block) == is_layer(other)
    assert repr(model) == repr(plain)
    assert type(model).forward is type(plain).forward
    plain.load_state_dict(model.state_dict())


@either_model
def test_a_deep_copy_checkpoints_by_itself(make: Callable[[], Any]) -> None:
    model = make()
    surgery = wrap_blocks(model, every_n=1)
    trained(model)
    twin = copy.deepcopy(model)
    assert differences(trained(twin), trained(model)) == []
    assert checkpoints(twin)
    own = wrap_blocks(twin)
    assert own is not surgery
    assert own.model is twin
    own.undo()
    assert not checkpoints(twin)
    assert checkpoints(model)
    assert not any(name in vars(module) for module in twin.modules() for name in ("forward", "_ckpt_surgery"))
    assert not any(module._forward_pre_hooks for module in twin.modules())
    surgery.undo()
    assert not checkpoints(model)


@pytest.mark.parametrize("moment", ["before a step", "after a step", "switched by a trainer"])
@either_model
def test_a_model_can_be_pickled_and_checkpoints_when_it_is_back(make: Callable[[], Any], moment: str) -> None:
    model = make()
    wrap_blocks(model)
    if moment == "switched by a trainer":
        model.gradient_checkpointing_enable({"use_reentrant": True})
        for module in model.modules():  # some releases leave a hook there that nobody can pickle
            module._forward_hooks.clear()
    if moment != "before a step":
        trained(model)
    back: Any = pickle.loads(pickle.dumps(model))
    record = trained(back)
    assert set(record.entries.values()) == {ONCE}
    assert differences(record, trained(make())) == []
    wrap_blocks(back).undo()
    assert not checkpoints(back)


@either_model
def test_weights_are_saved_and_loaded_as_without(make: Callable[[], Any], tmp_path: Path) -> None:
    model, plain = make(), make()
    wrap_blocks(model)
    model.save_pretrained(tmp_path / "ours")
    plain.save_pretrained(tmp_path / "plain")
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("ours", "plain")]
    assert files[0] == files[1]
    back = type(model).from_pretrained(tmp_path / "ours", dtype=torch.float64).train()
    assert not checkpoints(back)
    wrap_blocks(back)
    assert differences(trained(back), trained(plain)) == []
    assert checkpoints(back)


def lora(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(2)
    linears = "all-linear" if isinstance(model, transformers.LlamaForCausalLM) else ["c_attn", "c_fc"]
    config = peft.LoraConfig(r=2, target_modules=linears, init_lora_weights=False)
    return peft.get_peft_model(model, config).train()


@either_model
@pytest.mark.parametrize("order", ["before", "after", "the model inside", "before, and enabled by a trainer"])
def test_adapters_train_with_the_rest_frozen(make: Callable[[], Any], order: str) -> None:
    plain = lora(make())
    model = make()
    if order == "before":
        surgery = wrap_blocks(model)
        model = lora(model)
    else:
        model = lora(model)
        surgery = wrap_blocks(model.base_model.model if order == "the model inside" else model)
    if "trainer" in order:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    expected, record = trained(plain), trained(model)
    assert differences(record, expected) == []
    assert set(record.entries.values()) == {ONCE}
    assert all(g is not None and g.any() for name, g in record.gradients.items() if "lora" in name)
    assert wrap_blocks(model) is surgery
    surgery.undo()
    assert not checkpoints(model)
    assert differences(trained(model), expected) == []


@either_model
def test_hooks_on_blocks_run_once_with_the_arguments_of_the_call(make: Callable[[], Any]) -> None:
    model, plain = make(), make()
    wrap_blocks(model)
    seen, expected = seen_by_hooks(model), seen_by_hooks(plain)
    assert seen == expected
    assert len(expected) == 3 * len(layers_of(plain))


def seen_by_hooks(model: Any, **more: Any) -> list[Any]:
    """Return what hooks on all blocks of a model see in one step."""
    calls: list[Any] = []
    for block in layers_of(model).values():
        block.register_forward_pre_hook(
            lambda _, args, kwargs: calls.append(("before", outline((args, kwargs)))), with_kwargs=True
        )
        block.register_forward_hook(
            lambda _, args, kwargs, result: calls.append(("after", outline((args, kwargs)), outline(result))),
            with_kwargs=True,
        )
        block.register_full_backward_hook(lambda _, inner, outer: calls.append(("back", len(inner), len(outer))))
    step(model, {**tokens(), "use_cache": False, **more}, blocks=layers_of(model))
    return calls


def outline(value: Any) -> Any:
    """Replace a value's tensors by their descriptions, and caches by their class."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.requires_grad
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [outline(item) for item in value]
    if isinstance(value, Mapping):
        return {name: outline(item) for name, item in value.items() if name != "use_cache"}
    return type(value).__name__


def test_a_hook_may_change_arguments_and_results() -> None:
    results = []
    for wrapped in (False, True):
        model = llama()
        if wrapped:
            wrap_blocks(model)
        model.model.layers[1].register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:]))
        model.model.layers[2].register_forward_hook(
            lambda _, args, result: (result[0] * 2, *result[1:]) if isinstance(result, tuple) else result * 2
        )
        results.append(trained(model))
    assert differences(*results) == []
    assert differences(results[0], trained(llama())) != []


@either_model
@pytest.mark.parametrize("training", [False, True])
def test_generation_uses_its_cache_and_gives_the_same(make: Callable[[], Any], training: bool) -> None:
    prompt = tokens()["input_ids"]
    results = []
    for wrapped in (False, True):
        model = make()
        if wrapped:
            wrap_blocks(model)
        model.train(training)
        torch.manual_seed(0)
        with counted_tokens(model) as lengths:
            output = model.generate(
                prompt, max_new_tokens=4, do_sample=False, return_dict_in_generate=True, use_cache=True
            )
        results.append((output.sequences.tolist(), lengths))
        assert output.past_key_values.get_seq_length() == prompt.shape[1] + 3
    assert results[0] == results[1]
    assert results[0][1] == [prompt.shape[1], 1, 1, 1]


@contextlib.contextmanager
def counted_tokens(model: Any) -> Iterator[list[int]]:
    lengths: list[int] = []
    handle = model.get_input_embeddings().register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    yield lengths
    handle.remove()


@either_model
def test_evaluation_gives_the_same_with_its_cache(make: Callable[[], Any]) -> None:
    model, plain = make().eval(), make().eval()
    wrap_blocks(model)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            ours, theirs = model(**tokens(), use_cache=True), plain(**tokens(), use_cache=True)
        assert torch.equal(ours.logits, theirs.logits)
        assert ours.past_key_values.get_seq_length() == theirs.past_key_values.get_seq_length() == 6


@either_model
def test_all_hidden_states_and_attentions_come_out_the_same(make: Callable[[], Any]) -> None:
    results: list[Step] = []
    tuples: list[Any] = []

    def loss(output: Any) -> Tensor:
        states, attentions = output.hidden_states, output.attentions
        tuples.append([tensor.detach().clone() for tensor in (*states, *attentions)])
        assert all(tensor.requires_grad for tensor in tuples_of(output))
        total: Tensor = sum((tensor.square().mean() for tensor in tuples_of(output)), output.loss)
        return total

    def tuples_of(output: Any) -> list[Tensor]:
        return [*output.hidden_states, *output.attentions]

    for wrapped in (False, True):
        model = make()
        model.set_attn_implementation("eager")
        if wrapped:
            wrap_blocks(model)
        inputs = {**tokens(), "output_hidden_states": True, "output_attentions": True}
        results.append(step(model, inputs, loss=loss, blocks=layers_of(model)))
    assert len(tuples[0]) == len(tuples[1]) == 2 * len(layers_of(make())) + 1
    assert all(map(torch.equal, *tuples))
    assert differences(*results) == []
    assert set(results[1].entries.values()) == {ONCE}


Compiled = tuple[list[Tensor | None], CompileCounterWithBackend]
"""The gradients of a step of a compiled model, and its graphs."""


def compiled(model: nn.Module, *, fullgraph: bool, **more: Any) -> Compiled:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    torch.manual_seed(0)
    output = torch.compile(model, backend=counter, fullgraph=fullgraph)(**tokens(), **more)
    output.loss.backward()
    return [parameter.grad for parameter in model.parameters()], counter


@pytest.fixture(scope="module")
def compiled_plain() -> Compiled:
    return compiled(llama(2), fullgraph=True, use_cache=False)  # torch 2.8 compiles no making of a cache


def test_compilation_makes_one_graph_without_a_break(compiled_plain: Compiled) -> None:
    model = llama(2)
    wrap_blocks(model)
    result, counter = compiled(model, fullgraph=True)
    assert counter.frame_count == 1
    expected, _ = compiled_plain
    assert len(result) == len(expected)
    for ours, theirs in zip(result, expected, strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    recomputing = {
        node.target
        for graph in counter.graphs
        for node in graph.graph.nodes
        if "checkpoint" in str(node.target) and node.op == "call_function"
    }
    assert recomputing


def test_compilation_without_a_surgery_checkpoints_nothing(compiled_plain: Compiled) -> None:
    _, counter = compiled_plain
    assert not any("checkpoint" in str(node.target) for graph in counter.graphs for node in graph.graph.nodes)


def test_a_compiled_model_evaluates_as_without() -> None:
    model, plain = llama(2).eval(), llama(2).eval()
    wrap_blocks(model)
    torch._dynamo.reset()
    run: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        expected = plain(**tokens(), use_cache=False).logits
        torch.testing.assert_close(run(**tokens(), use_cache=False).logits, expected)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.runtime.sharded_script", tmp_path_factory.mktemp("sharded"), SIZE)


@pytest.mark.parametrize("order", ["before", "after", "after, parts"])
def test_sharded_models_are_checkpointed(sharded: Results, order: str) -> None:
    for result in sharded[order]:
        assert result["differences"] == []
        assert result["entries"] == [list(ONCE)]
        assert result["kinds"] == ["FSDPLlamaDecoderLayer"]
        assert result["names"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_undoing_leaves_them_sharded(sharded: Results, order: str) -> None:
    for result in sharded[f"{order}, undone"]:
        assert result["differences"] == []
        assert result["entries"] == [list(KEPT)]
        assert result["kinds"] == ["FSDPLlamaDecoderLayer"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_long_context_trains_sharded_models(sharded: Results, order: str) -> None:
    for result in sharded[f"long, {order}"]:
        assert result["loss"] < 1e-6
        assert 0 < result["apart"] < 1e-6
        assert result["made_logits"] == {}
        assert "computed by fused_linear_cross_entropy: 1 x" in result["said"]
    for result in sharded[f"long, head {order}"]:
        assert result["loss"] == 0
        assert result["apart"] < 1e-12
        assert "not fused: FSDP2 shards its head by itself" in result["said"]
