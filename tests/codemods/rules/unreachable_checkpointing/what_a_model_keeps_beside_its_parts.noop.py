# CKPT009 unsafe | class FooModel | holds nothing that checkpoints
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaPreTrainedModel


class FooModel(LlamaPreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config, scale):
        super().__init__(config)
        self.scale = scale
        self.sizes = config.sizes
        self.project = nn.Linear(4, 4)
        self.pool = nn.MultiheadAttention(4, 4)

    def forward(self, hidden_states):
        function = self.config.function
        return function(self.pool(self.project(hidden_states)) * self.scale)
