# CKPT106 info | gradient_checkpointing_enable | no more memory is saved
# file: train.py
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=True)
accelerator = Accelerator(fsdp_plugin=plugin)
model.gradient_checkpointing_enable()
model = accelerator.prepare(model)
accelerator.backward(model(batch).loss)
