# CKPT105 info | "use_reentrant": False | or trl sets it to True
# file: train.py
from peft import LoraConfig
from trl import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

# accelerate launch --use_deepspeed --zero_stage=3 train.py
arguments = SFTConfig("out", gradient_checkpointing_kwargs={"use_reentrant": False})
SFTTrainer("some/model", arguments, peft_config=LoraConfig()).train()
