# CKPT013 unsafe | layer.forward
# CKPT013 unsafe | block.forward
from types import MethodType

from transformers import AutoModelForCausalLM

from kernels import fused_forward

model = AutoModelForCausalLM.from_pretrained("foo")
for layer in model.model.layers:
    layer.self_attn.forward = MethodType(fused_forward, layer.self_attn)
    layer.forward = MethodType(fused_forward, layer)
for number, block in enumerate(model.transformer.h):
    block.forward = fused_forward.__get__(block)
