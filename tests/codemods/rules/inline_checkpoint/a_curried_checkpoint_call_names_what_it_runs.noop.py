# CKPT002 unsafe | hidden_states = checkpoint(use_reentrant=False)(layer) | layer is checkpointed by hand
# CKPT002 unsafe | hidden_states = checkpoint(function=layer | layer is checkpointed by hand
# prelude: gcl
from torch.utils.checkpoint import checkpoint

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, use_cache=None):
        offload = checkpoint(use_reentrant=False)
        for layer in self.layers:
            hidden_states = checkpoint(use_reentrant=False)(layer)(hidden_states, attention_mask=attention_mask)
        for layer in self.layers:
            hidden_states = checkpoint(function=layer, hidden_states=hidden_states, use_reentrant=False)
        return hidden_states
