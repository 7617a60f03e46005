from torch.utils.checkpoint import checkpoint


def forward(layers, masks, states, past_key_values=None):
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
