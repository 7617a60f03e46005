import transformers
from timm.layers import DecoderLayer
from vllm import LlamaDecoderLayer


class OwnLayer:
    def forward(self, hidden_states):
        return hidden_states


def patch(new_forward, module, modules):
    DecoderLayer.forward = new_forward
    LlamaDecoderLayer.forward = new_forward
    OwnLayer.forward = new_forward
    module.forward = new_forward
    for module in modules:
        module.forward = new_forward
