from torch.utils.checkpoint import checkpoint


def first(layers, states):
    for layer in layers:
        if layer.is_wanted:
            states = checkpoint(lambda states: layer(states), states, use_reentrant=False)
            break
    for layer in layers:
        if layer.is_last:
            return checkpoint(lambda states: layer(states), states, use_reentrant=False)
    return states


def steps(layers, states):
    for layer in layers:
        yield checkpoint(lambda states: layer(states), states, use_reentrant=False)


def train(layers, states):
    for layer in layers:
        states = checkpoint(lambda states: layer(states), states, use_reentrant=False).detach()
        states.sum().backward()


def of_the_same_size(layers, states):
    for layer in layers:
        states = checkpoint(layer, states, use_reentrant=False)
        (batch, width), dtype = states.shape, states.dtype
        length = states.size(1)
        states = checkpoint(lambda states: states.view(length, width).to(dtype), states, use_reentrant=False)
    return states


def under_their_own_names(layers, states):
    for layer in layers:
        states = checkpoint(lambda states: sorted(states, key=lambda layer: layer.at), states, use_reentrant=False)
    return states
