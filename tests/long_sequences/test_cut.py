"""Blocks cut at their attention: the same step, one saved input, and a reason where it cannot be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from benchmarks.long_context import double_precision
from ckpt_surgery import SurgeryError, guard, long_context
from ckpt_surgery.long_sequences.long_context import LongContext
from ckpt_surgery.measure.generators import seed_all
from ckpt_surgery.measure.meter import Meter
from ckpt_surgery.planning.explain import metered, without_values
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.runtime.offload.offloader import Offloader
from ckpt_surgery.runtime.surgery import checkpointing
from tests.long_sequences.test_long_context import assert_same, batch, llama, step
from tests.runtime.transports import Recorded

pytestmark = [pytest.mark.torch, pytest.mark.both]

LENGTH = 24
TOKENS = 96
"""The declared tokens of a batch, so that its sequences have more than one tile."""


def cut(model: nn.Module, **options: Any) -> LongContext:
    return long_context(model, tokens=TOKENS, **options)


def reasons(context: LongContext) -> set[str | None]:
    return {each.reason for each in context.cuts.values()}


def assert_cut(context: LongContext) -> None:
    assert reasons(context) == {None}
    assert all(each.calls for each in context.cuts.values())


@pytest.mark.parametrize(
    ("length", "options", "ran"),
    [(512, {}, False), (513, {}, True), (512, {"host": True}, True), (512, {"keep": "1GB"}, True)],
    ids=["one", "more", "host", "keep"],
)
def test_a_batch_that_fits_in_one_tile_runs_uncut(length: int, options: dict[str, Any], ran: bool) -> None:
    model = llama()
    own = step(model, **batch(length))
    with long_context(model, **options) as context:
        assert_same(step(model, **batch(length)), own)
        assert [(each.calls, each.reason) for each in context.cuts.values()] == [(ran, None)] * 2
        where = "" if ran else " where a batch has more tokens than a tile"
        assert f"2 x LlamaDecoderLayer: cut at its attention{where}\n" in str(context)
        assert "known after the first step" not in str(context)
        assert ("LlamaMLP: tiled" in str(context)) is not ran


def test_a_tile_holds_the_tokens_of_all_sequences() -> None:
    def peak(rows: int, length: int) -> int:
        model = llama()
        ids = torch.arange(rows * length).reshape(rows, length) % 20
        with long_context(model) as context, Meter() as meter:
            step(model, input_ids=ids, labels=ids)
            assert_cut(context)
        most: int = max(held for _, held in meter.timeline().points)
        return most

    assert peak(8, 512) < 1.1 * peak(1, 4096)


@pytest.mark.parametrize("host", [False, True], ids=["here", "on the host"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_is_the_models_own(attention: str, host: bool) -> None:
    model = llama(attn_implementation=attention, num_attention_heads=4, num_key_value_heads=2)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :5] = 0
    for inputs in (batch(LENGTH), batch(LENGTH, attention_mask=mask)):
        own = step(model, **inputs)
        with cut(model, host=host) as context:
            assert_same(step(model, **inputs), own)
            assert_cut(context)
        assert_same(step(model, **inputs), own)


@pytest.mark.parametrize("host", [False, True], ids=["here", "on the host"])
def test_dropout_draws_the_same_in_the_backward(host: bool) -> None:
    # The gradient is that of the very loss that was computed, as its difference along a direction shows.
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=16, n_layer=2, n_head=4, n_positions=LENGTH)).double()
    weights = [p for p in model.train().parameters() if p.requires_grad]
    directions = [torch.randn_like(weight) for weight in weights]

    def loss(far: float) -> float:
        seed_all(1)
        with torch.no_grad():
            for weight, direction in zip(weights, directions, strict=True):
                weight.add_(direction, alpha=far)
        ours = step(model, **batch(LENGTH))[0].item()
        with torch.no_grad():
            for weight, direction in zip(weights, directions, strict=True):
                weight.sub_(direction, alpha=far)
        return ours

    with double_precision(), cut(model, host=host) as context:
        seed_all(1)
        _, gradients = step(model, **batch(LENGTH))
        named = dict(model.named_parameters())
        along = sum(
            (gradients[name] * directions[index]).sum().item()
            for index, name in enumerate(name for name in named if named[name].requires_grad)
        )
        assert_cut(context)
        assert (loss(1e-7) - loss(-1e-7)) / 2e-7 == pytest.approx(along, rel=1e-5)


def test_a_block_that_draws_nothing_leaves_the_generator_alone() -> None:
    model = llama()
    with cut(model) as context:
        before = torch.get_rng_state()
        step(model, **batch(LENGTH))
        assert_cut(context)
    assert torch.equal(torch.get_rng_state(), before)


def test_half_precision_gradients_are_no_worse_cut_than_whole() -> None:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    exact = step(llama(**sizes).double(), **batch(192))[1]

    def error(model: Any) -> float:
        found = step(model, **batch(192))[1]
        return float(sum((found[name].double() - exact[name]).norm() for name in exact))

    own = error(llama(**sizes).bfloat16())
    with long_context(half := llama(**sizes).bfloat16(), tokens=384 * 6) as context:
        assert error(half) < 1.1 * own
        assert_cut(context)


def test_a_gradient_that_somebody_holds_is_not_written_over() -> None:
    model, hooked, retained = llama(), list[Tensor](), list[Tensor]()

    def keep(layer: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden.register_hook(hooked.append)
        hidden.retain_grad()
        retained.append(hidden)

    model.model.layers[0].register_forward_hook(keep)
    step(model, **batch(LENGTH))
    with cut(model) as context:
        step(model, **batch(LENGTH))
        assert_cut(context)
    for theirs, ours in (hooked, [each.grad for each in retained]):
        torch.testing.assert_close(ours, theirs)


def test_two_forwards_before_a_backward() -> None:
    model = llama()

    def stepped() -> Any:
        model.zero_grad()
        loss = model(**batch(LENGTH)).loss + 2 * model(**batch(LENGTH - 5)).loss
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}

    own = stepped()
    with cut(model):
        assert_same(stepped(), own)


def test_undo_between_forward_and_backward_changes_nothing() -> None:
    model = llama()
    own = step(model, **batch(LENGTH))
    model.zero_grad()
    with cut(model) as context:
        loss = model(**batch(LENGTH)).loss
        assert_cut(context)
    loss.backward()
    assert_same((loss.detach(), {name: p.grad for name, p in model.named_parameters()}), own)


def test_second_derivatives_are_refused() -> None:
    model = llama()
    with cut(model), pytest.raises(SurgeryError, match=r"no second derivatives .*cut=False"):
        torch.autograd.grad(model(**batch(LENGTH)).loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize("change", ["mode", "weight"])
def test_a_change_before_the_backward_is_refused(change: str) -> None:
    model = llama()
    with cut(model):
        loss = model(**batch(LENGTH)).loss
        if change == "mode":
            model.eval()
        else:
            model.model.layers[1].mlp.up_proj.weight.data = torch.zeros_like(model.model.layers[1].mlp.up_proj.weight)
            with torch.no_grad():
                model.model.layers[1].self_attn.q_proj.weight.mul_(2)
        with pytest.raises(SurgeryError, match="cannot be recomputed"):
            loss.backward()


@pytest.mark.parametrize("host", [False, True], ids=["input", "tiles"])
def test_nothing_of_a_block_stays_on_the_device(host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = Recorded()
    monkeypatch.setattr(checkpointing, "_offloader", lambda options: Offloader(transport, minimum_bytes=0))
    held = []
    for layers in (4, 8):
        with cut(model := llama(num_hidden_layers=layers), host=host) as context, Meter() as meter:
            loss = model(**batch(LENGTH)).loss
            meter.start_backward(loss)
            loss.backward()
            assert_cut(context)
        held.append(meter.kept_bytes)
        assert not (host and transport.copying)
    assert held[0] == held[1]


class ShiftingAttention(nn.Module):
    """Attention that also mixes each token with the one before it."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor, **options: Any) -> Any:
        attended, weights = self.attention(hidden_states=hidden_states, **options)
        return attended + hidden_states.roll(1, 1), weights


class CountingMlp(nn.Module):
    """An MLP that counts its calls."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp, self.count = mlp, 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.count += 1
        made: Tensor = self.mlp(hidden)
        return made


class TwiceAttention(nn.Module):
    """A layer that attends twice."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor, **options: Any) -> Any:
        first, _ = self.attention(hidden_states=hidden_states, **options)
        return self.attention(hidden_states=hidden_states + first, **options)


def swap(name: str, kind: Callable[[nn.Module], nn.Module]) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for layer in model.model.layers:
            setattr(layer, name, kind(getattr(layer, name)))

    return change


def hooked(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda *_: None)


class ShiftingMlp(nn.Module):
    """An MLP that mixes each token with the one before it, or `writes` a buffer instead."""

    def __init__(self, mlp: nn.Module, *, writes: bool = False) -> None:
        super().__init__()
        self.seen: Tensor
        self.mlp, self.writes = mlp, writes
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        if self.writes:
            self.seen.add_(1)
            return cast(Tensor, self.mlp(hidden))
        return cast(Tensor, self.mlp(hidden + hidden.roll(1, 1)))


@pytest.mark.parametrize(("writes", "why"), [(False, "it mixes tokens"), (True, "its forward writes")])
def test_an_mlp_that_can_be_neither_cut_nor_tiled_trains_as_it_is(writes: bool, why: str) -> None:
    model = llama()
    for layer in model.model.layers:
        layer.mlp = ShiftingMlp(layer.mlp, writes=writes)
    own = step(model, **batch(LENGTH))
    with cut(model) as context:
        assert_same(step(model, **batch(LENGTH)), own)
        assert f"2 x ShiftingMlp: not tiled: {why}" in str(context)
    if writes:
        assert model.model.layers[0].mlp.seen == 2


NOT_CUT: dict[str, tuple[Callable[[Any], None], str]] = {
    "a shift": (swap("self_attn", ShiftingAttention), "mixes tokens outside of its attention"),
    "a count": (swap("mlp", CountingMlp), "writes count on its modules"),
    "two attentions": (swap("self_attn", TwiceAttention), "calls attention 2 times"),
    "hooks": (hooked, "hooks inside of it"),
}


@pytest.mark.parametrize("name", NOT_CUT)
def test_what_cannot_be_cut_runs_as_without_and_says_why(name: str) -> None:
    model = llama()
    change, why = NOT_CUT[name]
    change(model)
    inputs = batch(LENGTH, use_cache=False)
    own = step(model, **inputs)
    context = cut(model)
    assert_same(step(model, **inputs), own)
    (reason,) = reasons(context)
    assert why in (reason or "")
    assert f"not cut: {reason}" in str(context)
    context.undo()


def test_on_shapes_a_block_with_a_convolution_is_not_cut() -> None:
    shapes = ShapesOnly()
    for size in (3, 1):
        model = llama()
        for layer in model.model.layers:
            layer.self_attn.convolution = nn.Conv1d(16, 16, size, padding=size // 2)
        released = shapes_of(model, shapes)
        with long_context(released) as context:
            metered(without_values(released), batch(LENGTH), shapes)
            assert reasons(context) == {"it has a convolution" if size > 1 else None}


def test_an_attention_function_of_others_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that mixes heads would be wrong for some of them at a time.
    from transformers import AttentionInterface

    def mixing(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
        weights = (query @ key.mT).softmax(-1)
        return ((weights - weights.mean(1, keepdim=True)) @ value).transpose(1, 2), None

    monkeypatch.setattr(AttentionInterface, "_global_mapping", AttentionInterface._global_mapping | {"mixing": mixing})
    model = llama(num_attention_heads=4, num_key_value_heads=4)
    model.config._attn_implementation = "mixing"
    own = step(model, **batch(LENGTH))
    with cut(model) as context:
        assert_same(step(model, **batch(LENGTH)), own)
        (reason,) = reasons(context)
    assert "may mix heads" in (reason or "")


def test_a_block_whose_modules_were_replaced_is_tried_again() -> None:
    model = llama()
    with cut(model) as context:
        step(model, **batch(LENGTH))
        assert_cut(context)
        swap("self_attn", ShiftingAttention)(model)
        ours = step(model, **batch(LENGTH))
        assert "mixes tokens" in str(reasons(context))
    assert_same(ours, step(model, **batch(LENGTH)))


def test_what_a_block_returns_may_be_written_into() -> None:
    model = llama()

    def double(layer: Any, args: Any, output: Any) -> None:
        (output[0] if isinstance(output, tuple) else output).mul_(2)

    model.model.layers[0].register_forward_hook(double)
    own = step(model, **batch(LENGTH))
    with cut(model) as context:
        assert_same(step(model, **batch(LENGTH)), own)
        assert_cut(context)


@pytest.mark.parametrize("host", [False, True], ids=["here", "on the host"])
def test_a_guard_proves_the_gradients_of_blocks_that_are_cut(host: bool) -> None:
    model = llama()
    with cut(model, host=host) as context, guard(model) as watch:
        for _ in range(3):
            step(model, **batch(LENGTH))
        assert_cut(context)
        assert "2 of 2 blocks proved" in str(watch.report())
        assert watch.report().ok


def test_a_batch_without_sequences_is_left_to_the_model() -> None:
    from transformers import FalconConfig, FalconForCausalLM

    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 32}
    model = FalconForCausalLM(FalconConfig(**sizes)).train()
    with long_context(model):
        assert model(input_ids=torch.zeros(0, 8, dtype=torch.long)).logits.shape == (0, 8, 32)
