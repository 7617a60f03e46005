"""Preparing a quantised model for training switches checkpointing on, whatever the configuration says.

`use_gradient_checkpointing` of PEFT's function is True unless it is passed, and the configuration's value was not.
"""

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.faults.script import forwards, train

FAULT = {
    "source": "https://github.com/axolotl-ai-cloud/axolotl/commit/fe0b76854ec444643481da131228c8d214654f91",
    "kind": "mode",
    "saw": "layers are recomputed although the configuration says gradient_checkpointing: false",
    "right": "the configuration's value is passed on",
    "cause": ["use_gradient_checkpointing", "prepare_model_for_kbit_training"],
    "cure": "",
}
MENDED = False
CONFIG = {"gradient_checkpointing": False, "lora_r": 4, "load_in_8bit": True}


def load_model():
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    model.is_loaded_in_8bit = CONFIG["load_in_8bit"]  # its weights stand for quantised ones
    if CONFIG["gradient_checkpointing"]:
        model.gradient_checkpointing_enable()
    return model


def make():
    torch.manual_seed(0)
    model = load_model()
    if MENDED:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=CONFIG["gradient_checkpointing"])
    else:
        model = prepare_model_for_kbit_training(model)
    model.is_loaded_in_8bit = False
    lora = LoraConfig(r=CONFIG["lora_r"], target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, lora).train()
    ids = torch.arange(24).reshape(2, 12)
    return model, {"input_ids": ids, "labels": ids}


def symptom():
    return forwards(make, lambda module: type(module).__name__ == "LlamaAttention", right=1)


if __name__ == "__main__":
    train(make)
