"""The Trainer switches checkpointing on again with its own mode; adapters then get no gradient (#26221, #42489)."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from benchmarks.cases.toys import llama

NEEDS = ["peft", "accelerate", "transformers<5"]
DOORS = {
    "run": {"cures": True, "says": ["3 of 3 blocks checkpointed"]},
    "watch": {"says": ["needs gradient", "use_reentrant=False"]},
}

adapters = LoraConfig("CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
model = get_peft_model(llama(), adapters)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
rows = [{"input_ids": torch.arange(12) + i, "labels": torch.arange(12) + i} for i in range(12)]
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        folder,
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True},
        use_cpu=True,
        report_to="none",
        save_strategy="no",
    )
    Trainer(model, settings, train_dataset=rows).train()
