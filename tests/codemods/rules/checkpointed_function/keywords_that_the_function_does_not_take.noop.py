# CKPT012 unsafe | x = checkpoint(run, x, mask=mask) | run gets `mask` by keyword, which it does not take: pass it by position
# CKPT012 unsafe | x = checkpoint(whole, x, mask=mask, use_reentrant=False) | whole gets `mask` by keyword
from torch.utils.checkpoint import checkpoint


def whole(*inputs):
    return inputs[0] * inputs[1]


def forward(layer, x, mask):
    def run(*inputs):
        return layer(*inputs)

    def taking(*inputs, mask=None):
        return layer(*inputs, mask)

    x = checkpoint(run, x, mask=mask)
    x = checkpoint(whole, x, mask=mask, use_reentrant=False)
    return checkpoint(taking, x, mask=mask, use_reentrant=False)
