# file: train.py
from accelerate import Accelerator, FullyShardedDataParallelPlugin

config = ModelConfig(gradient_checkpointing=True)
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(activation_checkpointing=True))
accelerator.backward(accelerator.prepare(build(config))(batch).loss)
