# CKPT012 unsafe | states = self._checkpointed(lambda | looks up `part`
from torch import nn
from torch.utils.checkpoint import checkpoint


class FooModel(nn.Module):
    def _checkpointed(self, function, *args, **kwargs):
        if self.gradient_checkpointing_enabled and self.training:
            return checkpoint(function, *args, use_reentrant=False, **kwargs)
        return function(*args, **kwargs)

    def forward(self, states, pixels):
        def embed(pixels):
            return self.embed(pixels)

        pixels = self._checkpointed(embed, pixels)
        for part in self.parts:
            states = self._checkpointed(lambda states, part=part: part(states), states, pixels=pixels)
            states = self._checkpointed(lambda states: part(states), states)
        return states
