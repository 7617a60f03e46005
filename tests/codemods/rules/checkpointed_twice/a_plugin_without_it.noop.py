# file: train.py
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=False)
accelerator = Accelerator(fsdp_plugin=plugin)
model.gradient_checkpointing_enable({"use_reentrant": True})
model = accelerator.prepare(model)
accelerator.backward(model(batch).loss)
