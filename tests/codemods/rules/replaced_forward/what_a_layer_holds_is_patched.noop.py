from transformers.models.llama import modeling_llama
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock


def apply(fused_mlp, fused_norm):
    modeling_llama.LlamaMLP.forward = fused_mlp
    modeling_llama.LlamaAttention.forward = fused_mlp
    modeling_llama.LlamaForCausalLM.forward = fused_norm
    MixtralSparseMoeBlock.forward = fused_mlp
