# CKPT105 unsafe | "use_reentrant": False
# file: train.py
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from peft import get_peft_model

plugin = DeepSpeedPlugin(zero_stage=3) if options.deepspeed else None
accelerator = Accelerator(deepspeed_plugin=plugin)
model = get_peft_model(model, config)
model.gradient_checkpointing_enable({"use_reentrant": False})
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.backward(model(batch).loss)
