# CKPT012 unsafe | states = run_checkpointed(run, states) | looks up `layer`
# CKPT012 unsafe | states = either(run, states | looks up `layer`
# CKPT012 unsafe | states = filled(run, states) | looks up `layer`
# CKPT012 unsafe | states = checkpoint(function=run | looks up `layer`
# CKPT012 unsafe | states = checkpoint(run_again | looks up `layer`
# CKPT012 unknown | states = checkpoint_states(run, states) | if checkpoint_states checkpoints it, run looks up `layer`
from functools import partial

from elsewhere import checkpoint_states, offload
from torch import nn
from torch.utils.checkpoint import checkpoint


class FooModel(nn.Module):
    def forward(self, states, offloaded=False):
        run_checkpointed = self._gradient_checkpointing_func
        for layer in self.parts:
            if offloaded:
                either = offload
            else:
                either = checkpoint
            filled = partial(checkpoint, use_reentrant=False)

            def run(states):
                return layer(states)

            states = run_checkpointed(run, states)
            states = either(run, states, use_reentrant=False)
            states = filled(run, states)
            states = checkpoint(function=run, states=states, use_reentrant=False)
            states = checkpoint_states(run, states)
            states = offload(run, states)
            run_again = partial(run, 1)
            run_again = partial(run_again, key=2)
            states = checkpoint(run_again, states, use_reentrant=False)
        return states
