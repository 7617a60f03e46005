# CKPT012 unsafe | states = checkpoint(make(layer) | make(layer) looks up `mask`, which the loop rebinds
# CKPT012 unsafe | states = checkpoint(run, states | run looks up `mask`, which the loop rebinds
from torch.utils.checkpoint import checkpoint


def forward(layers, masks, states):
    def make(layer):
        def run(states):
            return layer(states, mask)

        return run

    for layer, mask in zip(layers, masks):
        states = checkpoint(make(layer), states, use_reentrant=False)
    for layer, mask in zip(layers, masks):
        run = make(layer)
        states = checkpoint(run, states, use_reentrant=False)
    return states
