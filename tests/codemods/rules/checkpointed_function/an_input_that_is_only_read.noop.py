import torch
from torch.utils.checkpoint import checkpoint


def run(hidden_states, count, outputs):
    hidden_states = hidden_states.clone()
    hidden_states.add_(1.0)
    hidden_states[:, 0] = 0
    hidden_states += 1
    count += 1
    outputs["last"] = count
    return torch.tanh(hidden_states)


def forward(hidden_states, count, outputs, part):
    hidden_states = checkpoint(run, hidden_states, count, outputs, use_reentrant=False)
    part = checkpoint(lambda part: torch.relu(part), part, use_reentrant=True)
    return hidden_states, checkpoint(lambda part: part.relu_(), part=part, use_reentrant=False)
