# CKPT002 info | if self.gradient_checkpointing | left as it is: nothing of transformers holds Foo
# CKPT012 unsafe | states = checkpoint(run, states | looks up `part`
from torch import nn
from torch.utils.checkpoint import checkpoint


class Part(nn.Module):
    def forward(self, states):
        return states


class Foo(nn.Module):
    def __init__(self):
        self.parts = nn.ModuleList([Part() for _ in range(3)])
        self.gradient_checkpointing = False

    def forward(self, states):
        for part in self.parts:
            if self.gradient_checkpointing:

                def run(states):
                    return part(states)

                states = checkpoint(run, states, use_reentrant=False)
            else:
                states = part(states)
        return states
