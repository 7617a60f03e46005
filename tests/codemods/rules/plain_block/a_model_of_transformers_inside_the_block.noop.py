# CKPT001 info | class FooLayer | is not a block
# prelude: plain
from torch import nn
from transformers import AutoModel

from ...modeling_utils import PreTrainedModel


class FooLayer:
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()
        self.model = AutoModel.from_config(config)
