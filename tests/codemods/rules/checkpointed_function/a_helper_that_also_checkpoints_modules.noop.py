# CKPT002 info | if self.gradient_checkpointing | function is checkpointed
from torch import nn
from torch.utils.checkpoint import checkpoint


class FooModel(nn.Module):
    def _checkpointed(self, function, *args):
        if self.gradient_checkpointing and self.training:
            return checkpoint(function, *args, use_reentrant=False)
        return function(*args)

    def forward(self, states, pixels):
        for layer in self.layers:
            states = self._checkpointed(layer, states)
        return self._checkpointed(lambda states: self.norm(states), states)
