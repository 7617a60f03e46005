# CKPT105 info | "use_reentrant": False | peft_config on line 6
# file: train.py
from trl import ModelConfig, TrlParser, get_peft_config
from trl.experimental.cpo import CPOConfig, CPOTrainer

# accelerate launch --use_deepspeed --zero_stage 3 train.py
arguments = CPOConfig("out", gradient_checkpointing_kwargs={"use_reentrant": False})
CPOTrainer("some/model", arguments, peft_config=get_peft_config(options)).train()
