# file: scripts/train.py
"""Trains.

accelerate launch \
    --config_file configs/zero2.yaml \
    scripts/train.py \
    --model_name some/model
"""

from trl import ModelConfig, TrlParser
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

training_args, model_args = TrlParser((OnlineDPOConfig, ModelConfig)).parse_args_and_config()
training_args.gradient_checkpointing_kwargs = {"use_reentrant": True}
trainer = OnlineDPOTrainer(model_args.model_name, args=training_args)
trainer.train()
# file: configs/zero2.yaml
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  offload_optimizer_device: none
  zero_stage: 2
main_training_function: main
num_processes: 8
tpu_env: []
