import torch
from torch import nn
from transformers import AutoModel, LlamaForCausalLM, LlamaModel, PreTrainedModel


class FooTower(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 4)
        self.model = AutoModel.from_pretrained(name).to(torch.bfloat16)


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.tower = FooTower(config.name)


class BarModel(LlamaModel):
    def __init__(self, config):
        super().__init__(config)
        self.attn = nn.MultiheadAttention(4, 4)


class BarForRanking(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.model = BarModel(config) if config.own else nn.DataParallel(LlamaForCausalLM(config))
        self.pool = nn.MultiheadAttention(4, 4)
