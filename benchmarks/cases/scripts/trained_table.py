"""A bias that is made from a trained parameter goes to each layer by keyword: reentrant mode loses its gradient."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks.cases.toys import fit

DOORS = {
    "plain": {"exit": 1},
    "run": {"cures": True},
    "watch": {"exit": 1},
    "check": {"exit": 1, "says": ["CKPT003"]},
}


class TableConfig(PretrainedConfig):
    model_type = "table"


class TableBlock(GradientCheckpointingLayer):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, hidden_states, alibi=None):
        scores = self.mix(hidden_states) @ hidden_states.transpose(-1, -2) + alibi
        return hidden_states + scores.softmax(-1) @ hidden_states


class TableModel(PreTrainedModel):
    config_class = TableConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.project = nn.Linear(16, 16)
        self.bias = nn.Parameter(torch.zeros(1))
        self.blocks = nn.ModuleList([TableBlock() for _ in range(3)])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, hidden_states):
        hidden_states = self.project(hidden_states)
        alibi = self.bias * torch.arange(hidden_states.shape[1])
        for block in self.blocks:
            hidden_states = block(hidden_states, alibi=alibi)
        return hidden_states


torch.manual_seed(0)
model = TableModel(TableConfig()).train()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
fit(model, lambda: model(torch.randn(2, 8, 16)).square().mean())
