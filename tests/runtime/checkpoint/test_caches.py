"""A caller's caches are filled and read as without checkpointing; a model makes none of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from ckpt_surgery import SurgeryError, SurgeryWarning, wrap_blocks
from tests.measure.toys import CachingLayer, Model, model_of, values
from tests.zoo import state_toys as toys
from tests.zoo.state_toys import same, stack, train, two
from tests.zoo.tiny_models import llama, t5, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

WAYS: dict[str, dict[str, Any]] = {
    "every block": {},
    "every second block, unchecked": {"every_n": 2, "self_check": "never"},
    "with products kept": {"save": "matmul"},
    "offloaded": {"offload": "cpu"},
}
ways = pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))


def steady_t5() -> Any:
    return t5(dropout_rate=0.0)


def qwen() -> Any:
    """Build a model that returns no cache while its flag is on."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **heads)).double().train()


def two_forwards(model: Any, cache: Any, more: dict[str, Any]) -> list[Tensor]:
    """Return the gradients of two forwards that share a cache, and the cache."""
    ids = tokens()["labels"]
    model.zero_grad()
    first = model(**more, past_key_values=cache)
    second = model(**more, past_key_values=cache)
    assert second.past_key_values is cache
    (first.logits.square().mean() + second.logits.square().mean()).backward()
    assert cache.get_seq_length() == 2 * ids.shape[1]
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def decoder_cache() -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


@ways
@pytest.mark.parametrize(
    ("make", "made"),
    [(llama, DynamicCache), (qwen, DynamicCache), (steady_t5, decoder_cache)],
    ids=["decoder", "flagged", "both"],
)
def test_a_given_cache_is_filled_and_read(
    make: Callable[[], Any], made: Callable[[], Any], options: dict[str, Any]
) -> None:
    inputs = tokens()
    more = {"input_ids": inputs["input_ids"]}
    if make is steady_t5:
        more["decoder_input_ids"] = inputs["labels"]
    model = make()
    expected = two_forwards(make(), made(), more)
    wrap_blocks(model, **options)
    for _ in range(4):  # the first three are checked
        for ours, theirs in zip(two_forwards(model, made(), more), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


class Chunked(nn.Module):
    """A wrapper that runs a text in two parts with a cache, made or in the batch, through a model or its decoder."""

    def __init__(self, model: Any, *, whole: bool) -> None:
        super().__init__()
        self.model = model
        self.whole = whole

    def forward(self, batch: dict[str, Any]) -> Any:
        inner = self.model if self.whole else self.model.base_model
        cache = batch.get("cache") or DynamicCache()
        for part in batch["input_ids"].chunk(2, 1):
            output = inner(input_ids=part, past_key_values=cache)
        return (output.logits if self.whole else output.last_hidden_state).square().mean()


def gpt2() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates)).double().train()


@pytest.mark.parametrize("in_batch", [False, True], ids=["made around", "in the batch"])
@pytest.mark.parametrize("whole", [False, True], ids=["decoder", "model"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_cache_from_outside_of_the_model_is_filled(make: Callable[[], Any], whole: bool, in_batch: bool) -> None:
    results = []
    for wrapped in (False, True):
        model = Chunked(make(), whole=whole)
        if wrapped:
            wrap_blocks(model)
        batch = {"input_ids": tokens()["input_ids"], **({"cache": DynamicCache()} if in_batch else {})}
        model(batch).backward()
        results.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


class KeepingStack(Model):
    """A stack that keeps a cache and gives it to its blocks; `use_cache` is the caller's."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.cache = DynamicCache()
        self.asked: list[bool | None] = []

    def forward(self, values: Tensor, past_key_values: Any = None, use_cache: bool | None = None) -> Any:
        self.asked.append(use_cache)
        hidden_states = self.first(values)
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values=past_key_values or self.cache)
        return self.last(hidden_states)


def test_a_cache_that_a_module_keeps_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachingLayer, "__module__", "transformers.models.toy")
    model: Any = model_of(CachingLayer, CachingLayer, whole=KeepingStack)
    wrap_blocks(model)
    for number in (1, 2):
        model(**values()).sum().backward()
        assert model.cache.get_seq_length() == 2 * number
    model(**values(), past_key_values=DynamicCache(), use_cache=True)
    assert model.asked[-1] is True, "use_cache is left alone where a cache is given"


class OwnCache:
    """A growing list of keys that is not a Cache of transformers."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []


class AppendingBlock(toys.ScalingBlock):
    """A block that appends to a store and reads all of it."""

    def forward(self, hidden: Tensor, store: Any = None) -> Tensor:
        store.keys.append(self.up(hidden).detach())
        return super().forward(hidden) + len(store.keys)


class SlopeBlock(AppendingBlock):
    """A block that takes a gradient in its forward before reading the store: it is recomputed while it runs."""

    def forward(self, hidden: Tensor, store: Any = None) -> Tensor:
        store.keys.append(self.up(hidden).detach())
        (slope,) = torch.autograd.grad(torch.tanh(self.up(hidden)).sum(), hidden, retain_graph=True)
        return hidden + slope * len(store.keys)


@pytest.mark.parametrize("kind", [AppendingBlock, SlopeBlock])
def test_what_a_recompute_adds_is_not_read_by_a_forward(kind: type[AppendingBlock]) -> None:
    # Additions that count nothing in this step would count in the next, or in the rest of a forward.
    store = OwnCache()
    model = stack(two(kind))
    model.run = lambda layer, hidden: layer(hidden, store)  # type: ignore[method-assign]
    wrap_blocks(model)
    if kind is AppendingBlock:
        model(torch.ones(2, toys.WIDTH)).backward()
    with pytest.raises(SurgeryError, match=rf"{kind.__name__} layers\.0 .* its recompute adds to its argument store"):
        model(torch.ones(2, toys.WIDTH))


def test_a_cache_that_is_written_in_place_is_refused() -> None:
    model = llama()
    wrap_blocks(model)
    cache = StaticCache(config=model.config, max_cache_len=2 * tokens()["input_ids"].shape[1])
    with torch.no_grad():
        model(input_ids=tokens()["input_ids"], past_key_values=cache)
    loss = model(**tokens(), past_key_values=cache).loss
    with pytest.raises(
        SurgeryError,
        match=r"LlamaDecoderLayer model\.layers\.3 cannot be .* its argument (past_key_values|cache) was modified",
    ):
        loss.backward()


@pytest.mark.parametrize("make", [llama, t5])
def test_a_model_makes_no_cache_and_says_so_once(make: Callable[[], Any]) -> None:
    model, plain = make(), make()
    wrap_blocks(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SurgeryWarning)
        assert model(**tokens()).past_key_values is model(**tokens(), use_cache=False).past_key_values is None
    assert plain(**tokens(), use_cache=True).past_key_values is not None
    with pytest.warns(SurgeryWarning, match=r"called with use_cache=True: it makes no cache") as said:
        made = [model(**tokens(), use_cache=True).past_key_values for _ in range(3)]
    assert made == [None] * 3
    assert [warning.category for warning in said].count(SurgeryWarning) == 1


class Asking(nn.Module):
    """A model that asks the one inside for a cache, whatever its caller says."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = llama()

    def forward(self, **inputs: Any) -> Any:
        return self.inner(**{**inputs, "use_cache": True})


def test_nothing_is_said_where_only_a_part_was_asked() -> None:
    model = Asking().train()
    wrap_blocks(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SurgeryWarning)
        assert model(**tokens()).past_key_values is None


@pytest.mark.parametrize("every_n", [1, 2])
def test_other_blocks_keep_their_caches(every_n: int) -> None:
    model, plain = (toys.CachingStack([toys.CachingBlock(0), toys.CachingBlock(1)]) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    wrap_blocks(model, every_n=every_n)
    assert same(train(model), train(plain))


def test_a_layer_at_two_positions_reads_its_own_cache_as_unwrapped() -> None:
    def gradients(wrap: bool) -> list[Tensor]:
        model = llama(3)
        model.model.layers[2] = model.model.layers[0]
        if wrap:
            wrap_blocks(model)
        output = model(**tokens())
        assert output.past_key_values.get_seq_length() == 2 * tokens()["labels"].shape[1]
        output.loss.backward()
        return [output.loss.detach(), *(parameter.grad for parameter in model.parameters())]

    assert all(map(torch.equal, gradients(wrap=True), gradients(wrap=False)))
