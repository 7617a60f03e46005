"""Train GPT-2 on random tokens: a script that knows nothing of ckpt_surgery, to try its commands on."""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--tokens", type=int, default=1024)
parser.add_argument("--steps", type=int, default=10)
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
model = GPT2LMHeadModel(GPT2Config()).to(device).train()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(options.steps):
    tokens = torch.randint(model.config.vocab_size, (options.batch, options.tokens), device=device)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}")
