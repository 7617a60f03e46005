"""The names of checkpointable layers that a user gives are not looked at for a model of one class.

The pipeline knows the class GPTModelPipe, and checkpoints only layers of one name in it, which these layers have not.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/deepspeedai/DeepSpeed/commit/0dbbb70b99f7f251996128115a53c1c8397efa8f",
    "kind": "never checkpointed",
    "saw": "checkpointable_layers has no effect for GPT models, and memory is as without checkpointing",
    "right": "layers of the given names are checkpointed",
    "cause": ["nothing checkpoints", "not checkpointed", "nothing is checkpointed", "checkpointable_layers"],
    "cure": "wrap",
}
MENDED = False


class EmbeddingPipe(nn.Embedding):
    pass


class MambaLayerPipe(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixer = nn.Conv1d(width, width, 3, padding=2)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        y = self.mixer(self.norm(x).mT)[..., : x.shape[1]].mT
        return x + self.out_proj(nn.functional.silu(y))


class PipelineModule(nn.Module):
    def __init__(self, layers, loss_fn, activation_checkpoint_interval=0, checkpointable_layers=None):
        super().__init__()
        self.forward_funcs = nn.ModuleList(layers)
        self.loss_fn = loss_fn
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.checkpointable_layers = checkpointable_layers

    def _is_checkpointable(self, funcs):
        names = [type(layer).__name__ for layer in funcs]
        if type(self).__name__ in ("GPTModelPipe", "GPT2ModelPipe"):
            known = all("ParallelTransformerLayerPipe" in name for name in names)
            if MENDED:
                return known or all(name in (self.checkpointable_layers or ()) for name in names)
            return known
        if self.checkpointable_layers is not None:
            return all(name in self.checkpointable_layers for name in names)
        return any(any(True for _ in layer.parameters()) for layer in funcs)

    def forward(self, inputs, labels):
        x, step = inputs, self.activation_checkpoint_interval or len(self.forward_funcs)
        for start in range(0, len(self.forward_funcs), step):
            funcs = self.forward_funcs[start : start + step]

            def run(x, funcs=funcs):
                for layer in funcs:
                    x = layer(x)
                return x

            if self.activation_checkpoint_interval and self._is_checkpointable(funcs):
                x = checkpoint(run, x, use_reentrant=False)
            else:
                x = run(x)
        return self.loss_fn(x.flatten(0, 1), labels.flatten())


class GPTModelPipe(PipelineModule):
    def __init__(self, width=16, vocabulary=32):
        layers = [
            EmbeddingPipe(vocabulary, width),
            *(MambaLayerPipe(width) for _ in range(4)),
            nn.Linear(width, vocabulary),
        ]
        super().__init__(layers, nn.CrossEntropyLoss(), 1, ["MambaLayerPipe"])


def make():
    torch.manual_seed(0)
    ids = torch.arange(24).reshape(2, 12)
    return GPTModelPipe(), {"inputs": ids, "labels": ids.roll(-1, 1)}


def off(model):
    model.activation_checkpoint_interval = 0


def switch(model, mode):
    model.activation_checkpoint_interval = 1 if mode else 0


MODES = ("non_reentrant",)


def symptom():
    return memory(make, off)


if __name__ == "__main__":
    train(make)
