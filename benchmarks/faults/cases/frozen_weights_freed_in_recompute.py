"""ZeRO-3 frees the frozen weights of a layer at the end of its recompute, in the tensors that the checkpoint keeps.

A non-reentrant recompute hands the backward the weight itself where it needs no gradient, and checks its shape after
the hooks of the layer have emptied it.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, error, train

FAULT = {
    "source": "https://github.com/deepspeedai/DeepSpeed/pull/8130",
    "kind": "wrapper and sharding",
    "saw": "CheckpointError: saved metadata has shape [1024], recomputed metadata [0]",
    "right": "what a recompute has gathered stays until the backward is through",
    "cause": ["CKPT105", "zero-3", "freed", "emptied", "changed in between", "frozen"],
    "cure": "wrap",
}
MENDED = False


class ZeroThree:
    """Keeps the weights of leaf modules elsewhere, and fetches them while the module runs."""

    def __init__(self, model):
        self.full = {}
        for module in model.modules():
            own = list(module.parameters(recurse=False))
            if own and not any(p.requires_grad for p in own):
                for parameter in own:
                    self.full[parameter] = parameter.data
                    self.release(parameter)
                module.register_forward_pre_hook(self.fetch)
                module.register_forward_hook(self.after)
                module.register_full_backward_pre_hook(self.fetch)
                module.register_full_backward_hook(self.after_backward)

    def release(self, parameter):
        parameter.data = torch.empty(0)

    def fetch(self, module, inputs):
        for parameter in module.parameters(recurse=False):
            parameter.data = self.full[parameter]

    def after(self, module, inputs, output):
        for parameter in module.parameters(recurse=False):
            if MENDED:
                if torch._C._current_graph_task_id() == -1:
                    self.release(parameter)
            else:
                self.release(parameter)

    def after_backward(self, module, of_inputs, of_outputs):
        for parameter in module.parameters(recurse=False):
            self.release(parameter)


class Layer(nn.Module):
    def __init__(self, width, rank=2):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(width).requires_grad_(False)
        self.up_proj = nn.Linear(width, 2 * width).requires_grad_(False)
        self.down_proj = nn.Linear(2 * width, width).requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, width) / width)
        self.lora_b = nn.Parameter(torch.randn(2 * width, rank) / rank)

    def forward(self, x):
        y = self.input_layernorm(x)
        y = self.up_proj(y) + y @ self.lora_a.T @ self.lora_b.T
        return x + self.down_proj(torch.relu(y))


class Model(Switched):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.score = nn.Linear(width, 1)

    def forward(self, x, y):
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.gradient_checkpointing else layer(x)
        return nn.functional.mse_loss(self.score(x), y)


def make():
    torch.manual_seed(0)
    model = Model()
    ZeroThree(model)
    return model, {"x": torch.rand(6, 4), "y": torch.rand(6, 1)}


def symptom():
    return error(lambda: train(make, steps=2))


if __name__ == "__main__":
    train(make)
