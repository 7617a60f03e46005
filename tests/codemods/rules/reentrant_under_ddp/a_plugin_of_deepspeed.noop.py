# file: train.py
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin

accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))
model.gradient_checkpointing_enable({"use_reentrant": True})
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.backward(model(batch).loss)
