"""Models as people train them: partly frozen or in evaluation mode, with unusual parts, without false alarm."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery import verify
from ckpt_surgery.measure.kinds import SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import Skip
from tests.measure.toys import WIDTH, Layer, Model, SureLayer, model_of, values

pytestmark = [pytest.mark.both, pytest.mark.torch]


def tiny(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Build a small Llama or BERT in training mode, with inputs."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4)
        model: nn.Module = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, num_attention_heads=4))
    tokens = torch.randint(3, 64, (2, 8))
    return model.train(), {"input_ids": tokens, "labels": tokens}


def freeze(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model


def without_fault(report: Report) -> None:
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("kind", "frozen"),
    [
        pytest.param("llama", ("model.embed_tokens", "model.layers.0"), id="the bottom of a decoder"),
        pytest.param("llama", ("model",), id="all but the head"),
        pytest.param("bert", ("bert.embeddings", "bert.encoder.layer.0"), id="the bottom of an encoder"),
        pytest.param("bert", ("bert.encoder",), id="every block"),
    ],
)
def test_frozen_parts_are_no_fault(kind: str, frozen: tuple[str, ...]) -> None:
    model, inputs = tiny(kind)
    report = verify(freeze(model, *frozen), inputs, modes="non_reentrant")
    reached = any(block.backward for mode in report.modes for block in mode.blocks)  # in transformers 5, by a hook
    assert report.faults == ()
    assert report.status == ("ok" if reached or frozen != ("model",) else "skipped"), str(report)


def test_frozen_blocks_of_a_plain_stack_need_no_recompute() -> None:
    report = verify(freeze(model_of(Layer, Layer, Layer), "first", "layers.0"), values(), modes="non_reentrant")
    without_fault(report)
    assert [(block.forward, block.backward) for block in report.modes[0].blocks] == [(1, 0), (1, 1), (1, 1)]


class Cycles(Model):
    """A model that runs its blocks several times, first without gradient."""

    def forward(self, values: Tensor) -> Tensor:
        hidden_states: Tensor = self.first(values)
        with torch.no_grad():
            for layer in self.layers:
                hidden_states = layer(hidden_states)
        hidden_states = hidden_states + self.first(values)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


def test_calls_without_gradient_need_no_recompute() -> None:
    report = verify(model_of(SureLayer, SureLayer, whole=Cycles), values())
    without_fault(report)
    assert {(b.forward, b.backward) for mode in report.modes for b in mode.blocks} == {(2, 1)}


def test_a_layer_in_evaluation_mode_stays_in_it_and_is_not_checkpointed() -> None:
    model = model_of(Layer, Layer)
    model.layers[1].eval()
    report = verify(model, values())
    for mode in report.modes:
        (fault,) = [fault for fault in mode.faults if fault.level == "recompute"]
        assert fault.subjects == ("layers.1",)
        assert "layers.1 is in evaluation mode" in fault.cause
    assert not model.layers[1].training


class Quantised(SureLayer):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        result: Tensor = super().forward(hidden_states * self.scale.to(hidden_states.dtype))
        return result


def test_quantised_parameters_are_left_alone() -> None:
    torch.manual_seed(1)
    without_fault(verify(Model(Quantised(), Quantised()), {"values": torch.randn(3, WIDTH)}))


class Pair(Model):
    def forward(self, values: Tensor, others: tuple[Tensor, ...] = ()) -> Tensor:
        result: Tensor = super().forward(values + sum(others))
        return result


def test_inputs_from_a_graph_and_inputs_in_containers_have_gradients() -> None:
    made = torch.ones(3, WIDTH, dtype=torch.float64, requires_grad=True) * 2
    report = verify(model_of(SureLayer, SureLayer, whole=Pair), {**values(), "others": (made,)})
    without_fault(report)
    assert all("input others[0]" in mode.errors for mode in report.modes)


class Noisy(Model):
    """A model that adds noise from a generator it does not hold."""

    own = torch.Generator()

    def forward(self, values: Tensor) -> Tensor:
        noise = torch.randn(values.shape, generator=self.own, dtype=values.dtype)
        result: Tensor = super().forward(values + noise)
        return result


class Holder(Noisy):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.own = torch.Generator()


class DrawingLayer(SureLayer):
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator()

    def forward(self, hidden_states: Tensor) -> Tensor:
        noise = torch.rand(hidden_states.shape, generator=self.own, dtype=hidden_states.dtype)
        result: Tensor = super().forward(hidden_states) * noise
        return result


def test_a_model_unlike_itself_is_skipped_and_checkpointing_not_blamed() -> None:
    report = verify(model_of(SureLayer, SureLayer, whole=Noisy), values())
    for mode in report.modes:
        assert (mode.status, [skip.kind for skip in mode.skips]) == ("skipped", [SkipKind.IRREPRODUCIBLE])


def test_a_generator_that_the_model_holds_is_put_back_before_each_run() -> None:
    without_fault(verify(model_of(SureLayer, SureLayer, whole=Holder), values()))


def test_a_block_that_draws_from_its_own_generator_is_named() -> None:
    for mode in verify(model_of(SureLayer, DrawingLayer), values()).modes:
        (fault,) = mode.faults
        assert fault.level == "values"
        assert "`layers.1.own` is a generator" in fault.cause


class Statistics(SureLayer):
    """A layer that keeps a mean in a frozen parameter, as codebooks do."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(hidden_states.mean(0), alpha=0.1)
        result: Tensor = super().forward(hidden_states)
        return result


def test_a_frozen_parameter_that_is_written_twice_is_a_fault_of_the_state() -> None:
    model = model_of(Statistics, Statistics)
    for mode in verify(model, values()).modes:
        (fault,) = mode.faults
        assert (fault.level, fault.subjects) == ("state", ("layers.0.mean", "layers.1.mean"))
    assert not model.layers[0].get_parameter("mean").any()


def test_an_optimizer_in_the_backward_is_not_stepped() -> None:
    model = model_of(Layer, Layer)
    weight = model.first.weight
    before, steps = weight.detach().clone(), []
    cast(Any, weight).register_post_accumulate_grad_hook(lambda p: steps.append(p.data.zero_()))
    without_fault(verify(model, values()))
    assert not steps
    assert torch.equal(weight, before)
    model(**values()).sum().backward()
    assert len(steps) == 1


class Remembering(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[int] = []
        self.total = torch.zeros(1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.history.append(len(hidden_states))
        self.total += 1
        return super().forward(hidden_states)


def test_lists_and_plain_tensors_of_a_model_are_as_they_were() -> None:
    model = model_of(Remembering, Remembering)
    layer = cast(Remembering, model.layers[0])
    history = layer.history
    verify(model, values())
    assert layer.history is history
    assert history == []
    assert not layer.total.any()


class OnePlain(Model):
    """A model that checkpoints its only block itself: no stack, and memory is saved."""

    def forward(self, values: Tensor) -> Tensor:
        hidden_states: Tensor = self.first(values)
        block = self.layers[0]
        if not self.gradient_checkpointing:
            return cast(Tensor, block(hidden_states))
        return cast(Tensor, checkpoint(block, hidden_states, use_reentrant=False))


def test_a_model_whose_stack_saves_nothing_skips_levels_without_a_fault() -> None:
    report = verify(model_of(lambda: nn.Sequential(*(nn.Tanh() for _ in range(9))), whole=OnePlain), values())
    mode, other = report.modes
    assert mode.ok
    assert Skip(("recompute", "cost"), SkipKind.NO_BLOCKS) in mode.skips
    assert mode.outcomes["recompute"] == "skipped"
    assert [skip.kind for skip in other.skips] == [SkipKind.OTHER_MODE]
