"""A chunked cross entropy gathers its chunks' gradients under the placement of the activations: no rank sums them.

The head is split over the ranks, so that each has a part of every chunk's gradient. The buffer is called replicated,
as the activations are, where the gradient of each chunk is partial.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import gradients, train

FAULT = {
    "source": "https://github.com/pytorch/torchtitan/commit/c2a3771a440ed6557f69b2a661bfe4d674ac084d",
    "kind": "loss and tiles",
    "saw": "tensor parallel training ends at a loss of 2.73 instead of 2.34",
    "right": "the buffer has the placement of the chunks' gradients",
    "cause": ["placement", "partial", "all-reduce", "ranks differ", "ranks"],
    "cure": "",
    "ranks": 2,
}
MENDED = False
CHUNKS = 2


class ChunkedLoss(torch.autograd.Function):
    """Computes the gradient of each chunk at once, so that the logits of one alone are alive."""

    @staticmethod
    def forward(ctx, hidden, head, labels):
        mesh, total, grads = hidden.device_mesh, 0.0, []
        pieces = zip(hidden.detach().chunk(CHUNKS), labels.chunk(CHUNKS), strict=True)
        with torch.enable_grad():
            for chunk, wanted in pieces:
                chunk = chunk.requires_grad_()
                loss = F.cross_entropy(head(chunk).full_tensor(), wanted, reduction="sum") / len(labels)
                loss.backward()
                grads.append(chunk.grad)
                total = total + loss.detach()
        placements = grads[0].placements if MENDED else hidden.placements
        buffer = torch.cat([grad.to_local() for grad in grads])
        ctx.gathered = DTensor.from_local(buffer, mesh, placements, run_check=False)
        return total

    @staticmethod
    def backward(ctx, grad):
        return ctx.gathered.redistribute(placements=[Replicate()]) * grad, None, None


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.mlp(self.norm(x)))


class Decoder(nn.Module):
    checkpointing, chunked = True, True

    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        mesh = self.output.weight.device_mesh
        hidden = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        if self.chunked:
            return ChunkedLoss.apply(hidden, self.output, tokens.roll(-1))
        return F.cross_entropy(self.output(hidden).full_tensor(), tokens.roll(-1))


def make():
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Decoder()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model.output, mesh, ColwiseParallel(use_local_output=False))
    return model, {"tokens": torch.randint(32, (16,))}


def off(model):
    model.checkpointing = False


def switch(model, mode):
    model.checkpointing = mode is not None


MODES = ["non_reentrant"]


def symptom():
    def whole(model):
        model.chunked = False

    return gradients(make, whole)


if __name__ == "__main__":
    train(make)
