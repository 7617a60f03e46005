# CKPT013 unsafe | modeling_llama.LlamaDecoderLayer.forward | wrap_blocks
# CKPT013 unsafe | GPT2Block.forward
# CKPT013 unsafe | setattr(Qwen2DecoderLayer, "forward", fused)
from transformers.models.gpt2.modeling_gpt2 import GPT2Block


def apply(fused):
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

    modeling_llama.LlamaDecoderLayer.forward = fused
    GPT2Block.forward = fused
    setattr(Qwen2DecoderLayer, "forward", fused)
