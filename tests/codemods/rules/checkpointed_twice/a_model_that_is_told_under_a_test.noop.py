# file: train.py
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=True)
accelerator = Accelerator(fsdp_plugin=plugin)
if options.gradient_checkpointing:
    model.gradient_checkpointing_enable({"use_reentrant": True})
model = accelerator.prepare(model)
accelerator.backward(model(batch).loss)
