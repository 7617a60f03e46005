# file: train.py
from accelerate import Accelerator
from accelerate import FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
model.gradient_checkpointing_enable({"use_reentrant": True})
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.backward(model(batch).loss)
