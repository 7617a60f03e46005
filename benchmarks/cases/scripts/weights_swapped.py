"""A patch is merged into the weights for the forward alone: the recompute reads other weights (ComfyUI #15846)."""

from benchmarks.cases.toys import fit, llama

FAULT = {"says": ["mlp.up_proj.weight changed in between"], "never": [" 3 of 3 blocks proved"]}
DOORS = {"run": FAULT, "watch": FAULT}

model = llama()
model.gradient_checkpointing_enable({"use_reentrant": False})
layers = [layer.mlp.up_proj.requires_grad_(False) for layer in model.model.layers]
old = [layer.weight.data for layer in layers]


def merge(*_):
    for layer in layers:
        layer.weight.data = 1.5 * layer.weight.data


def take_out(*_):
    for layer, weight in zip(layers, old, strict=True):
        layer.weight.data = weight


model.register_forward_pre_hook(merge)
model.register_forward_hook(take_out)
fit(model)
