import transformers
from torch import nn
from transformers import AutoModel, LlamaConfig, LlamaModel, TFBertModel

from .own import Encoder, wrap


class Policy(nn.Module):
    def __init__(self, config):
        self.own = Encoder(config)
        self.wrapped = LlamaModel(config)
        self.wrapped = wrap(self.wrapped)
        self.remote = AutoModel.from_pretrained("far", trust_remote_code=True)
        self.config = LlamaConfig()
        self.off = LlamaModel(config)
        self.on = LlamaModel(config)
        self.read = LlamaModel(config)
        self.other = TFBertModel(config)
        self.circle = self.circle

    def switch_on(self):
        self.own.gradient_checkpointing = True
        self.wrapped.gradient_checkpointing = True
        self.remote.gradient_checkpointing = True
        self.config.gradient_checkpointing = True
        self.off.gradient_checkpointing = False
        self.on.gradient_checkpointing = True
        self.on.gradient_checkpointing_enable()
        self.read.gradient_checkpointing = True
        self.other.gradient_checkpointing = True
        self.circle.gradient_checkpointing = True
        self.gradient_checkpointing = True

    def forward(self, states):
        return run(self.read, states) if self.read.gradient_checkpointing else self.read(states)


def given(model):
    if model is None:
        model = LlamaModel(LlamaConfig())
    model.gradient_checkpointing = True


def each(names):
    layer = LlamaModel(LlamaConfig())
    for layer in names:
        layer.gradient_checkpointing = True
    with layer as layer:
        layer.gradient_checkpointing = True
