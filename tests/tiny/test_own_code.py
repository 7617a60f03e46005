"""Tiny models of code outside transformers: a custom `__init__`, and parameters left to a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ckpt_surgery.errors import CannotBuild
from ckpt_surgery.tiny import tiny_config, tiny_model

pytestmark = pytest.mark.both


class ToyConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "toy_of_mine"

    def __init__(
        self,
        vocab_size: int = 50_000,
        hidden_size: int = 4096,
        num_layers: int = 40,
        pad_token_id: int = 0,
        rope_theta: float = 10_000.0,
        rope_scaling: dict[str, Any] | None = None,
        **other: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.num_layers = vocab_size, hidden_size, num_layers
        self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
        if rope_scaling is not None and sorted(rope_scaling) != ["factor", "type"]:
            raise ValueError("rope_scaling must have a type and a factor")
        super().__init__(pad_token_id=pad_token_id, **other)


class TellingConfig(PretrainedConfig):  # type: ignore[misc]
    """A configuration that passes its base a token and refuses it as an argument."""

    model_type = "telling_toy"

    def __init__(self, vocab_size: int = 50_000, hidden_size: int = 4096, num_layers: int = 40, **other: Any) -> None:
        self.vocab_size, self.hidden_size, self.num_layers = vocab_size, hidden_size, num_layers
        super().__init__(pad_token_id=7, **other)


class OuterConfig(PretrainedConfig):  # type: ignore[misc]
    """A configuration that chooses its part by the architectures that the part names."""

    model_type = "outer_toy"

    def __init__(self, llm_config: dict[str, Any] | None = None, **other: Any) -> None:
        llm = llm_config or {"architectures": ["Toy"]}
        assert llm["architectures"][0] == "Toy"
        self.llm_config = ToyConfig(**llm)
        super().__init__(**other)


class ToyModel(PreTrainedModel):  # type: ignore[misc]
    config_class = ToyConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size) for _ in range(2))
        self.post_init()

    def forward(self, input_ids: Any = None, **_: Any) -> BaseModelOutput:
        hidden_states = self.embedding(input_ids)
        for layer in self.layers:
            hidden_states = hidden_states + layer(hidden_states)
        return BaseModelOutput(last_hidden_state=hidden_states)


class TestConfigurations:
    def test_the_arguments_of_a_written_init_shrink(self) -> None:
        config = tiny_config(ToyConfig(hidden_size=5120))
        assert (config.vocab_size, config.hidden_size, config.num_layers) == (128, 64, 2)

    def test_a_value_that_the_class_gives_its_base_itself_is_kept(self) -> None:
        config = tiny_config(TellingConfig())
        assert (config.pad_token_id, config.hidden_size, config.num_layers) == (7, 64, 2)

    @pytest.mark.parametrize("rope", [None, {"type": "dynamic", "factor": 2.0}])
    def test_rotary_settings_that_the_class_checks_are_given_as_they_were(self, rope: dict[str, Any] | None) -> None:
        assert tiny_config(ToyConfig(rope_scaling=rope)).hidden_size == 64

    def test_the_architectures_of_a_part_are_kept(self) -> None:
        config = tiny_config(OuterConfig())
        assert (config.llm_config.hidden_size, config.llm_config.architectures) == (64, ["Toy"])


class TestWeights:
    def test_a_parameter_that_is_left_to_a_checkpoint_gets_a_value(self) -> None:
        class Left(ToyModel):
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.weight = nn.Parameter(torch.empty(config.hidden_size, config.hidden_size))
                self.scale = nn.Parameter(torch.empty(config.hidden_size))
                self.given = nn.Parameter(torch.full((config.hidden_size,), 3.0))

            def forward(self, input_ids: Any = None, **_: Any) -> BaseModelOutput:
                hidden_states = super().forward(input_ids).last_hidden_state
                return BaseModelOutput(last_hidden_state=hidden_states @ self.weight * self.scale * self.given)

        models = [tiny_model(Left).model for _ in range(2)]
        assert float(models[0].scale.detach().sum()) == 64.0
        assert float(models[0].given.detach().sum()) == 192.0
        assert 0 < float(models[0].weight.detach().std()) < 1
        assert torch.equal(models[0].weight, models[1].weight)

    def test_a_dtype_that_the_code_reads_is_named(self) -> None:
        class Reading(ToyModel):
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.register_buffer("table", torch.ones(config.hidden_size).type(config.torch_dtype))

        assert tiny_model(Reading).model.table.dtype == torch.float32


class TestBuilding:
    @pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.tolist, float])
    def test_a_constructor_that_reads_values_is_counted_and_built_all_the_same(self, read: Any) -> None:
        class Ramp(ToyModel):
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.rates = [read(rate) for rate in torch.linspace(0, 1, 2)]
                self.wide = nn.Linear(config.count_of_mine, 1)

        config = ToyConfig(count_of_mine=100)
        assert tiny_model(Ramp, config).model.rates == [0.0, 1.0]
        with pytest.raises(CannotBuild, match=r"size raised .*parameters are more than"):
            tiny_model(Ramp, ToyConfig(count_of_mine=10**8))

    def test_a_cache_that_the_code_cannot_make_is_not_asked_for(self) -> None:
        class Caching(ToyModel):
            def forward(self, input_ids: Any = None, use_cache: bool = True, **_: Any) -> BaseModelOutput:
                if use_cache:
                    raise ValueError("the old format of the cache")
                return super().forward(input_ids)

        assert tiny_model(Caching).inputs["use_cache"] is False
        assert "use_cache" not in tiny_model(ToyModel).inputs
