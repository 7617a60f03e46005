# CKPT012 unsafe | checkpoint(run, states, use | run writes into `states`, which it is given
# CKPT012 unsafe | checkpoint(run, states=states | which it gets by keyword
# CKPT012 unsafe | checkpoint(lambda part: part.mul_(2) | writes into `part`, which it is given
# CKPT012 unsafe | checkpoint(scaled, hidden_states | writes into `hidden_states`, which it is given
# CKPT012 unsafe | checkpoint(self._run, out | self._run writes into `x`, which it is given
import torch
from torch.utils.checkpoint import checkpoint


def scaled(hidden_states):
    hidden_states[:, 0] = 0
    return torch.tanh(hidden_states)


class FooModel:
    def _run(self, x):
        x += 1
        return self.layer(x)

    def forward(self, states, hidden_states, part):
        def run(states):
            states.add_(1.0)
            return self.layer(states)

        a = checkpoint(run, states, use_reentrant=False)
        b = checkpoint(run, states=states, use_reentrant=False)
        c = checkpoint(lambda part: part.mul_(2), part, use_reentrant=False)
        out = checkpoint(scaled, hidden_states, use_reentrant=True)
        return a, b, c, checkpoint(self._run, out, use_reentrant=True)
