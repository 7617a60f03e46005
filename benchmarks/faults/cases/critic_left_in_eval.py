"""The critic of a PPO training is updated in evaluation mode, in which its layers do not checkpoint.

`from_pretrained` returns a model in evaluation mode, and the loop calls neither `train()` nor `eval()`: what the model
was loaded with decides.
"""

import tempfile

import torch
from torch import nn
from transformers import AutoModelForTokenClassification, LlamaConfig

from benchmarks.faults.script import STEPS, memory

FAULT = {
    "source": "https://github.com/volcengine/verl/commit/4a3b49dfa59fcc26fc7ae11e552466ca6972a5aa",
    "kind": "mode",
    "saw": "enable_gradient_checkpointing has no effect on the memory of the critic",
    "right": "train() before an update, eval() before values are computed",
    "cause": ["CKPT107", "evaluation mode", "training mode", "train()"],
}
MENDED = False


class Critic:
    def __init__(self, module, optimizer):
        self.critic_module = module
        self.critic_optimizer = optimizer

    @torch.no_grad()
    def compute_values(self, batch):
        if MENDED:
            self.critic_module.eval()
        return self.critic_module(**batch).logits.squeeze(-1)

    def update_critic(self, batch, returns):
        if MENDED:
            self.critic_module.train()
        loss = nn.functional.mse_loss(self.critic_module(**batch).logits.squeeze(-1), returns)
        loss.backward()
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad()
        return loss.item()


def load():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, vocab_size=64, num_labels=1
    )
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForTokenClassification.from_config(config).save_pretrained(folder)
        model = AutoModelForTokenClassification.from_pretrained(folder)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, {"input_ids": torch.arange(24).reshape(2, 12)}


def losses(prepare=lambda model: None):
    model, batch = load()
    prepare(model)
    critic = Critic(model, torch.optim.SGD(model.parameters(), lr=0.05))
    returns = critic.compute_values(batch) + 1
    seen = []
    for step in range(STEPS):
        seen.append(critic.update_critic(batch, returns))
        print("step", step, "loss", seen[-1], flush=True)
    return seen


def make():
    """Return the critic as its first update finds it."""
    model, batch = load()
    critic = Critic(model, torch.optim.SGD(model.parameters(), lr=0.0))
    critic.update_critic(batch, critic.compute_values(batch))
    return model, batch


MODES = ("non_reentrant",)


def symptom():
    return memory(make)


if __name__ == "__main__":
    losses()
