from torch import nn
from torch.utils.checkpoint import checkpoint


def a_lambda_that_binds_the_layer(layers, hidden_states, mask):
    for index, layer in enumerate(layers):
        hidden_states = checkpoint(
            lambda states, layer=layer, index=index: layer(states, mask, index), hidden_states, use_reentrant=True
        )
    return hidden_states


def a_local_function_makes_one_that_keeps_what_it_needs(layers, masks, states, past_key_values=None):
    scale = masks[0].sum()

    def make(layer, mask):
        return lambda states: layer(states, mask) * scale

    def make_early(layer):
        bound = mask

        def run(states):
            return layer(states, bound)

        return run

    def make_decoder(layer):
        return lambda states: layer(states, past_key_value)

    for index, (layer, mask) in enumerate(zip(layers, masks)):
        past_key_value = past_key_values[index] if past_key_values is not None else None
        states = checkpoint(make_decoder(layer), states, use_reentrant=False)
        states = checkpoint(make(layer, mask), states, use_reentrant=False)
        states = checkpoint(make_early(layer), states, use_reentrant=False)
        states = make(layer, mask)(states)
    return states


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


def backward_in_each_turn(layers, states):
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


def a_loop_that_trains(model, loader, optimizer):
    for batch in loader:
        loss = checkpoint(lambda inputs: model(inputs, batch), batch.inputs, use_reentrant=False)
        loss.backward()
        optimizer.step()


class FooModel(nn.Module):
    def forward(self, states, aux, fast=False):
        states = self.embed(states)
        width = states.shape[-1]
        if fast:
            return checkpoint(lambda aux: self.first(aux) + states, aux, use_reentrant=False)
        if aux is None:
            aux = checkpoint(lambda other: self.first(other) + states, aux, use_reentrant=False)
        else:
            states = self.second(states)
        mixed = checkpoint(lambda aux: self.first(aux).view(width) + states, aux, use_reentrant=False)
        aux = self.third(aux)
        width = mixed.shape[-1]
        return mixed, aux


def rebound_after_the_backward(model, states, aux):
    aux = checkpoint(lambda aux: model(aux) + states, aux, use_reentrant=False)
    aux.sum().backward()
    states = model(states)
    return states


def a_name_that_the_loop_leaves_as_it_is(layers, hidden_states):
    mask = make_mask(hidden_states)

    def run(layer, states):
        width = states.shape[-1]
        return layer(states, mask, width)

    for layer in layers:
        hidden_states = checkpoint(run, layer, hidden_states, use_reentrant=True)
    return hidden_states


def functions_of_the_same_name_that_checkpoint_nothing(saver, layers, hidden_states):
    for layer in layers:
        saver.checkpoint(lambda: layer, hidden_states, step=1)
    return hidden_states
