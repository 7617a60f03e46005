"""Checkpointing is left to PEFT's helper for quantised models, which the model is not.

`prepare_model_for_kbit_training` switches it on only where a model was loaded in 4 or 8 bit.
"""

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/InternLM/xtuner/commit/d118ac4dd9c24b5c297ac5f261202c07360bb9f4",
    "kind": "never checkpointed",
    "saw": "LoRA without quantisation runs out of memory, with activation checkpointing in the config",
    "right": "checkpointing is switched on whatever the adapters are",
    "cause": ["CKPT107", "prepare_model_for_kbit_training", "nothing is checkpointed", "not checkpointed"],
    "cure": "wrap",
}
MENDED = False


class SupervisedFinetune(torch.nn.Module):
    def __init__(self, llm, lora=None, use_activation_checkpointing=True):
        super().__init__()
        self.llm = llm
        self.llm.config.use_cache = False
        if MENDED:
            if use_activation_checkpointing:
                self.llm.enable_input_require_grads()
                self.llm.gradient_checkpointing_enable()
            if lora is not None:
                self.llm = get_peft_model(prepare_model_for_kbit_training(self.llm, False), lora)
        elif lora is not None:
            self.llm = get_peft_model(prepare_model_for_kbit_training(self.llm, use_activation_checkpointing), lora)
        elif use_activation_checkpointing:
            self.llm.gradient_checkpointing_enable()

    def forward(self, data):
        return self.llm(**data)


def make():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, vocab_size=64
    )
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = SupervisedFinetune(LlamaForCausalLM(config), lora)
    ids = torch.arange(24).reshape(2, 12)
    return model.train(), {"data": {"input_ids": ids, "labels": ids}}


def off(model):
    llm = model.llm.get_base_model()
    if llm.is_gradient_checkpointing:
        llm.gradient_checkpointing_disable()


def switch(model, mode):
    """Leave it as its constructor did, or switch it off."""
    if mode is None:
        off(model)


MODES = ("non_reentrant",)


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make)
