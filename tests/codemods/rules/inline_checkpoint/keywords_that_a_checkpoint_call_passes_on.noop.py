# CKPT002 unsafe | if self.gradient_checkpointing:  # torch | called without use_reentrant, which means True up to torch 2.13, it refuses `mask` by keyword: pass use_reentrant=False
# CKPT002 unsafe | if self.gradient_checkpointing:  # asked | called with use_reentrant=True, it refuses `mask`
# CKPT002 info | if self.gradient_checkpointing:  # given | with use_reentrant=True it refuses `mask` by keyword
# CKPT002 info | if self.gradient_checkpointing:  # not reentrant | inline branch; left as it is
# CKPT002 info | if self.gradient_checkpointing:  # unpacked | inline branch; left as it is
# CKPT002 unsafe | if self.gradient_checkpointing:  # none taken | custom(layer) gets `mask` by keyword, which it does not take: bind it where that is made
# CKPT002 info | if self.gradient_checkpointing:  # all taken | inline branch; left as it is
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def forward(self, x, mask=None):
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x, mask, **options):
        def custom(module):
            def custom_forward(*inputs):
                return module(*inputs)

            return custom_forward

        def taking(module):
            def custom_forward(*inputs, **named):
                return module(*inputs, **named)

            return custom_forward

        for layer in self.layers:
            if self.gradient_checkpointing:  # torch
                x = checkpoint(layer, x, mask=mask)
            else:
                x = layer(x, mask=mask)
            if self.gradient_checkpointing:  # asked
                x = checkpoint(layer, x, mask=mask, use_reentrant=True)
            else:
                x = layer(x, mask=mask)
            if self.gradient_checkpointing:  # given
                x = self._gradient_checkpointing_func(layer, x, mask=mask)
            else:
                x = layer(x, mask=mask)
            if self.gradient_checkpointing:  # not reentrant
                x = checkpoint(layer, x, mask=mask, use_reentrant=False)
            else:
                x = layer(x, mask=mask)
            if self.gradient_checkpointing:  # unpacked
                x = checkpoint(layer, x, mask=mask, **options)
            else:
                x = layer(x, mask=mask)
            if self.gradient_checkpointing:  # none taken
                x = checkpoint(custom(layer), x, mask=mask, use_reentrant=False)
            else:
                x = layer(x, mask=mask)
            if self.gradient_checkpointing:  # all taken
                x = checkpoint(taking(layer), x, mask=mask, use_reentrant=False)
            else:
                x = layer(x, mask=mask)
        return x
