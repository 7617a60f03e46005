"""A Trainer of transformers."""

import sys

from transformers import Trainer, TrainingArguments

from tests.planning.fit_scripts.common import limited, llama, rows, told

data = rows(16)
memory = limited()
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=4,
    max_steps=4,
    logging_steps=1,
    learning_rate=1e-2,
    use_cpu=True,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=llama(), args=arguments, train_dataset=data)
trainer.train()
told([float(log["loss"]) for log in trainer.state.log_history if "loss" in log], memory)
