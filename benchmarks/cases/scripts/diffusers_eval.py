"""diffusers checkpoints in evaluation mode too (since 0.32): `wrap_blocks` keeps no more than it did (#9850)."""

import torch
from diffusers import FluxTransformer2DModel

from benchmarks.cases.toys import kept_bytes
from ckpt_surgery import wrap_blocks

NEEDS = ["diffusers"]
DOORS = {"plain": {}}

torch.manual_seed(0)
sizes = {"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32}
model = FluxTransformer2DModel(
    patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, axes_dims_rope=[4, 4, 8], **sizes
).eval()
batch = {
    "hidden_states": torch.randn(1, 16, 4),
    "encoder_hidden_states": torch.randn(1, 6, 32),
    "pooled_projections": torch.randn(1, 32),
    "timestep": torch.tensor([0.5]),
    "img_ids": torch.zeros(16, 3),
    "txt_ids": torch.zeros(6, 3),
}
whole = kept_bytes(lambda: model(**batch))
model.enable_gradient_checkpointing()
library = kept_bytes(lambda: model(**batch))
print(wrap_blocks(model))
assert kept_bytes(lambda: model(**batch)) <= library < whole
