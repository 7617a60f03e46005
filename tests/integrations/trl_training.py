"""Options, adapter and training under an allocator limit, shared by the scripts of TRL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset
from peft import LoraConfig

from tests.integrations.local_files import tokenizer
from tests.planning.fit_scripts.common import limited, llama, told


def train(config: Callable[..., Any], trainer: Callable[..., Any], rows: Sequence[dict[str, Any]]) -> None:
    """Train four steps with a trainer of TRL and its class of options, into the folder of the command line."""
    arguments = config(
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
    training = trainer(
        model=llama(),
        args=arguments,
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    )
    training.train()
    told([float(log["loss"]) for log in training.state.log_history if "loss" in log], memory)
