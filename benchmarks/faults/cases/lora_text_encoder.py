"""LoRA in a text encoder learns nothing: its embeddings are frozen, and its reentrant checkpoints drop the gradient.

The denoiser behind it has LoRA as well and is trained, so that no error comes: the up weights stay at zero.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.script import Switched, gradients, train

FAULT = {
    "source": "https://github.com/kohya-ss/sd-scripts/issues/91",
    "kind": "adapters",
    "saw": "all LoRA weights of the text encoder are zero after the training",
    "right": "the embeddings ask for a gradient, so that the input of the first layer does",
    "cause": ["requires_grad", "reentrant"],
    "cure": "wrap",
}
MENDED = False


class LoRAModule(nn.Module):
    def __init__(self, linear, rank=2):
        super().__init__()
        self.lora_down = nn.Linear(linear.in_features, rank, bias=False)
        self.lora_up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.lora_up.weight)
        self.original, linear.forward = linear.forward, self.forward

    def forward(self, x):
        return self.original(x) + self.lora_up(self.lora_down(x))


class CLIPEncoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.v_proj, self.fc = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, hidden_states, causal_attention_mask):
        x = self.norm(hidden_states)
        scores = self.q_proj(x) @ self.k_proj(x).transpose(1, 2) + causal_attention_mask
        x = hidden_states + scores.softmax(-1) @ self.v_proj(x)
        return x + torch.sigmoid(1.702 * x) * self.fc(x)


class CLIPTextModel(Switched):
    use_reentrant = True

    def __init__(self, width=16):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(40, width), nn.Embedding(8, width)
        self.layers = nn.ModuleList(CLIPEncoderLayer(width) for _ in range(2))

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        hidden_states = self.token_embedding(ids) + self.position_embedding.weight
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = checkpoint(layer, hidden_states, mask, use_reentrant=self.use_reentrant)
            else:
                hidden_states = layer(hidden_states, mask)
        return hidden_states


class Denoiser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, latents, context):
        scores = self.query(latents) @ context.transpose(1, 2)
        return self.out(scores.softmax(-1) @ context)


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.text_encoder, self.unet = CLIPTextModel(), Denoiser()
        self.requires_grad_(False)
        linears = [module for module in self.modules() if isinstance(module, nn.Linear)]
        self.network = nn.ModuleList(LoRAModule(linear) for linear in linears)
        if MENDED:
            self.text_encoder.token_embedding.requires_grad_(True)
            self.text_encoder.position_embedding.requires_grad_(True)

    def forward(self, ids, latents, noise):
        return (self.unet(latents, self.text_encoder(ids)) - noise).square().mean()


MODES = ["reentrant"]


def off(model):
    model.text_encoder.gradient_checkpointing_disable()


def switch(model, mode):
    model.text_encoder.gradient_checkpointing = mode is not None
    model.text_encoder.use_reentrant = mode == "reentrant"


def make():
    torch.manual_seed(0)
    ids = torch.randint(40, (2, 8))
    return Trained(), {"ids": ids, "latents": torch.randn(2, 9, 16), "noise": torch.randn(2, 9, 16)}


def symptom():
    return gradients(make, off)


if __name__ == "__main__":
    train(make)
