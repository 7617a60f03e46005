# CKPT012 unsafe | x = checkpoint(shifted, x) | shifted captures `rel_pos_bias`: with use_reentrant=True the backward pass stops where two blocks share it
# CKPT012 unsafe | x = checkpoint(biased, x, use_reentrant=True) | biased captures `relative_position_bias`
from torch.utils.checkpoint import checkpoint


def forward(layer, x, rel_pos_bias, relative_position_bias, window_size):
    def shifted(x):
        return layer(x) + rel_pos_bias

    def biased(x):
        return layer(x) + relative_position_bias

    def split(x):
        return layer(x, window_size)

    x = checkpoint(shifted, x)
    x = checkpoint(biased, x, use_reentrant=True)
    x = checkpoint(shifted, x, use_reentrant=False)
    return checkpoint(split, x, use_reentrant=True)
