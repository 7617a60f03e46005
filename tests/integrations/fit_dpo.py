"""Preference training of TRL with an adapter of PEFT, whose base is the reference, under an allocator limit."""

from __future__ import annotations

import sys

from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

from tests.integrations.local_files import sentence, tokenizer
from tests.planning.fit_scripts.common import limited, llama, told

data = Dataset.from_list(
    [{"prompt": sentence(n, 20), "chosen": sentence(n + 1, 30), "rejected": sentence(n + 2, 30)} for n in range(16)]
)
arguments = DPOConfig(
    output_dir=sys.argv[1],
    max_steps=4,
    logging_steps=1,
    report_to="none",
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    per_device_train_batch_size=4,
    learning_rate=1e-2,
    save_strategy="no",
    disable_tqdm=True,
)
memory = limited()
trainer = DPOTrainer(
    model=llama(),
    args=arguments,
    train_dataset=data,
    processing_class=tokenizer(),
    peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
told([float(log["loss"]) for log in trainer.state.log_history if "loss" in log], memory)
