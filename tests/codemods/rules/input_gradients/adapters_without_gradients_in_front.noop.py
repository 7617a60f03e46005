# CKPT108 unsafe | net.gradient_checkpointing_enable( | behind get_peft_model (line 4)
# file: train.py
from peft import LoraConfig, get_peft_model

net = load()
net = get_peft_model(net, LoraConfig())
net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
net(1).loss.backward()
# file: trainer.py
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

net = get_peft_model(load(), LoraConfig())
Trainer(net, TrainingArguments("out", gradient_checkpointing=True)).train()
