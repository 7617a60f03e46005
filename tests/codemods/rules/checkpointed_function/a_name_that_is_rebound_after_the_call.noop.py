# CKPT012 unsafe | states = checkpoint(lambda: self.first(states) | looks up `states`, which is rebound after the call
# CKPT012 unsafe | aux = checkpoint(lambda aux | looks up `states`, which is rebound after the call
from torch import nn
from torch.utils.checkpoint import checkpoint


class FooModel(nn.Module):
    def forward(self, states, aux):
        states = checkpoint(lambda: self.first(states), use_reentrant=False)
        aux = checkpoint(lambda aux: self.second(aux) + states, aux, use_reentrant=False)
        states = states + aux
        return states
