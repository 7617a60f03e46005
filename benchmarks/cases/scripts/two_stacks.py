"""Only one of two stacks is checkpointed (HunyuanVideo-1.5 #54)."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from benchmarks.cases.toys import fit

DOORS = {
    "run": {"says": ["4 of 4 blocks proved"]},
    "watch": {"says": ["2 of"]},
    "check": {"says": ["single_blocks"]},
}


class HalfConfig(PretrainedConfig):
    model_type = "half"


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, image, text):
        return image + self.left(image) + text.mean(1, keepdim=True), text + self.right(text)


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, hidden_states):
        return hidden_states + self.down(torch.tanh(self.up(hidden_states)))


class HalfModel(PreTrainedModel):
    config_class = HalfConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.double_blocks = nn.ModuleList([Pair() for _ in range(2)])
        self.single_blocks = nn.ModuleList([Single() for _ in range(2)])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, image, text):
        for block in self.double_blocks:
            if self.gradient_checkpointing and self.training:
                image, text = self._gradient_checkpointing_func(block.__call__, image, text)
            else:
                image, text = block(image, text)
        hidden_states = torch.cat([image, text], 1)
        for block in self.single_blocks:
            hidden_states = block(hidden_states)
        return hidden_states


torch.manual_seed(0)
model = HalfModel(HalfConfig()).train()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
fit(model, lambda: model(torch.randn(2, 8, 16), torch.randn(2, 3, 16)).square().mean())
