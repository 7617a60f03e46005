"""Models of transformers are only checkpointed in training mode (CKPT107)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = [pytest.mark.both, pytest.mark.torch]


@pytest.mark.parametrize(("training", "forwards"), [(False, 1), (True, 2)])
def test_a_layer_runs_again_in_training_mode_alone(training: bool, forwards: int) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=1, num_key_value_heads=1)).train(training)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    calls: list[object] = []
    model.model.layers[0].self_attn.register_forward_pre_hook(lambda module, _: calls.append(module))
    ids = torch.arange(4)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    assert model.is_gradient_checkpointing
    assert len(calls) == forwards


def test_a_wrapper_has_no_such_method_and_a_compiled_model_does(one_rank: None) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=1, num_key_value_heads=1))
    assert not hasattr(DistributedDataParallel(model), "gradient_checkpointing_enable")
    compiled: Any = torch.compile(model, backend="eager")
    compiled.gradient_checkpointing_enable()
    assert model.model.layers[0].gradient_checkpointing
