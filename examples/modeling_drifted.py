"""A model whose two calls of a block have drifted apart, for `ckpt_surgery check` and `apply` to find and repair."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel


class DriftedLayer(nn.Module):
    """A block that attends to itself and to an encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        hidden_states = hidden_states + self.self_attn(hidden_states, hidden_states, hidden_states)[0]
        if encoder_hidden_states is None:
            return hidden_states
        return hidden_states + self.cross_attn(hidden_states, encoder_hidden_states, encoder_hidden_states)[0]


class DriftedModel(PreTrainedModel):
    """A decoder that forgets its encoder as soon as checkpointing is on."""

    supports_gradient_checkpointing = True

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList([DriftedLayer(config.hidden_size) for _ in range(config.num_hidden_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(self, hidden_states: Tensor, encoder_states: Tensor) -> Tensor:
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states, encoder_hidden_states=encoder_states)
        return hidden_states
