# CKPT002 info | if self.with_cp: | layer is checkpointed by a branch on `self.with_cp`; left as it is
# CKPT002 unsafe | if index < self.recomputed: | `mask`: `None` under checkpointing, `mask` otherwise; pass the same in both: where `mask` is given
# CKPT002 info | = checkpoint(layer, x, use_reentrant=False) if self.grad_ckpt else layer(x) | a conditional expression
# CKPT002 info | x = checkpoint(layer, x, use_reentrant=False)  # another side | layer is checkpointed by hand
# CKPT002 info | if self.recompute:  # inner | layer is checkpointed by a branch on `self.recompute`
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def forward(self, x, mask=None):
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(4)

    def forward(self, x, mask):
        for index, layer in enumerate(self.layers):
            if self.with_cp:
                x = checkpoint(layer, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
            if index < self.recomputed:
                x = checkpoint(layer, x, None, use_reentrant=False)
            else:
                x = layer(x, mask)
            x = checkpoint(layer, x, use_reentrant=False) if self.grad_ckpt else layer(x)
            if index:
                x = checkpoint(layer, x, use_reentrant=False)  # another side
            else:
                x = self.norm(x)
            if index:
                if self.recompute:  # inner
                    x = checkpoint(layer, x, use_reentrant=False)
                else:
                    x = layer(x)
            else:
                x = layer(x)
        return x
