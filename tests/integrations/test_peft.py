"""Adapters on shapes, compared with those that PEFT adds to a real model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ckpt_surgery.planning.explain import explanation_of, metered
from ckpt_surgery.planning.lora import add_lora
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks

pytestmark = [pytest.mark.torch, pytest.mark.slow]
peft = pytest.importorskip("peft", reason="run `make integrations`")
RANK = 4


def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=128, num_hidden_layers=3, use_cache=False, **sizes))


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_train_and_keep_the_bytes_that_peft_s_do(dtype: torch.dtype, checkpointed: bool) -> None:
    ids = torch.arange(64).reshape(2, 32)
    inputs = {"input_ids": ids, "labels": ids}
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    real = peft.get_peft_model(model().to(dtype), config).train()
    shapes = ShapesOnly()
    planned = shapes_of(model().to(dtype), shapes).train()
    add_lora(planned, RANK, shapes)
    if checkpointed:
        for each in (real, planned):
            wrap_blocks(each, self_check="never")
    copied = shapes_of(real, shapes)
    expected = explanation_of(copied, *metered(copied, inputs, shapes))
    told = explanation_of(planned, *metered(planned, inputs, shapes))
    assert told.gradient_bytes == expected.gradient_bytes
    assert told.parameter_bytes == expected.parameter_bytes
    assert told.kept_bytes == expected.kept_bytes
