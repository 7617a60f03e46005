# file: two.py
"""accelerate launch --config_file zero2.yaml two.py"""

from trl import ModelConfig, TrlParser
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

training_args, model_args = TrlParser((OnlineDPOConfig, ModelConfig)).parse_args_and_config()
training_args.gradient_checkpointing_kwargs = {"use_reentrant": True}
OnlineDPOTrainer(model_args.model_name, args=training_args).train()
# file: three.py
"""accelerate launch --config_file zero3.yaml three.py --use_peft"""

from trl import ModelConfig, TrlParser
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

training_args, model_args = TrlParser((OnlineDPOConfig, ModelConfig)).parse_args_and_config()
training_args.gradient_checkpointing_kwargs = {"use_reentrant": True}
OnlineDPOTrainer(model_args.model_name, args=training_args).train()
# file: zero2.yaml
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
# file: zero3.yaml
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
