"""The checkpointed call leaves out an argument that the plain call has (diffusers #11814)."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from benchmarks.cases.toys import fit

DOORS = {
    "run": {"cures": True},
    "watch": {"says": ["without gradient: 6 parameters", "`extra`: left out under checkpointing"]},
    "check": {"exit": 1, "says": ["extra"]},
    "verify": {"exit": 1, "says": ["extra"], "never": ["cause not known"]},
}


class ConditionConfig(PretrainedConfig):
    model_type = "condition"


class ConditionBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.join = nn.Linear(16, 16)

    def forward(self, hidden_states, extra=None):
        hidden_states = hidden_states + torch.tanh(self.mix(hidden_states))
        return hidden_states if extra is None else hidden_states + self.join(extra).mean(1, keepdim=True)


class ConditionModel(PreTrainedModel):
    config_class = ConditionConfig
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.blocks = nn.ModuleList([ConditionBlock() for _ in range(3)])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, hidden_states, extra=None):
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(block.__call__, hidden_states)
            else:
                hidden_states = block(hidden_states, extra=extra)
        return hidden_states


def make():
    torch.manual_seed(0)
    inputs = {"hidden_states": torch.randn(2, 8, 16), "extra": torch.randn(2, 3, 16)}
    return ConditionModel(ConditionConfig()).train(), inputs


if __name__ == "__main__":
    model, batch = make()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    fit(model, lambda: model(**batch).square().mean())
