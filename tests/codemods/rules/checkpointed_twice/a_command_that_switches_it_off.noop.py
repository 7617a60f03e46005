# file: train.py
"""accelerate launch --config_file configs/fsdp.yaml train.py --gradient_checkpointing False"""
from trl import SFTConfig, SFTTrainer

arguments = SFTConfig("out")
SFTTrainer("some/model", arguments).train()
# file: configs/fsdp.yaml
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_version: 2
main_training_function: main
num_processes: 8
tpu_env: []
