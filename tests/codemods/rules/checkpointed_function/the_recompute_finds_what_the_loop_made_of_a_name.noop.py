# CKPT012 unsafe | checkpoint(lambda | looks up `layer`, which the loop rebinds, and the recompute finds the last value: the gradients are wrong, or the step stops; pass a tensor as an argument, and bind all else as a default: `layer=layer`
# CKPT012 unsafe | states = ckpt.checkpoint(lambda | looks up `layer`, which
# CKPT012 unsafe | return [checkpoint(lambda states: head(states) | looks up `head`
# CKPT012 unsafe | states = checkpoint(make(layer) | make(layer) looks up `mask`, which the loop rebinds
# CKPT012 unsafe | states = checkpoint(run, states | run looks up `mask`, which the loop rebinds
# CKPT012 unsafe | checkpoint(run | looks up `index` and `scale`
# CKPT012 unsafe | checkpoint(run | looks up `aux`
# CKPT012 unsafe | states = checkpoint(lambda: self.first(states) | looks up `states`, which is rebound after the call
# CKPT012 unsafe | aux = checkpoint(lambda aux | looks up `states`, which is rebound after the call
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def a_lambda_that_looks_up_the_layer_of_the_loop(layers, hidden_states):
    for layer in layers:
        hidden_states = checkpoint(lambda states: layer(states), hidden_states, use_reentrant=False)
    return hidden_states


def a_lambda_in_a_loop_inside_a_loop_that_trains(layers, loader):
    import torch.utils.checkpoint as ckpt

    for batch in loader:
        states = batch.inputs
        for layer in layers:
            states = ckpt.checkpoint(lambda states: layer(states, batch.mask), states, use_reentrant=False)
        torch.autograd.backward(states.sum())


def all_heads(heads, states):
    return [checkpoint(lambda states: head(states), states, use_reentrant=False) for head in heads]


def one_by_one(heads, states):
    return (checkpoint(lambda states: head(states), states, use_reentrant=False) for head in heads)


def a_local_function_makes_one_that_looks_up_what_the_loop_rebinds(layers, masks, states):
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


def a_local_function_that_looks_up_what_the_loop_makes(layers, scales, hidden_states):
    def run(states):
        return layers[index](states) * scale

    for index in range(len(layers)):
        scale = scales[index]
        hidden_states = checkpoint(run, hidden_states, use_reentrant=False)
    return hidden_states


def a_local_function_over_what_the_loop_carries(layers, hidden_states, aux):
    for layer in layers:
        def run(states, layer=layer):
            return run_layer(layer, states, aux)

        hidden_states, aux = checkpoint(run, hidden_states, use_reentrant=True)
    return hidden_states, aux


class FooModel(nn.Module):
    def forward(self, states, aux):
        states = checkpoint(lambda: self.first(states), use_reentrant=False)
        aux = checkpoint(lambda aux: self.second(aux) + states, aux, use_reentrant=False)
        states = states + aux
        return states
