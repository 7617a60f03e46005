# CKPT012 unsafe | return [checkpoint(lambda states: head(states) | looks up `head`
from torch.utils.checkpoint import checkpoint


def all_heads(heads, states):
    return [checkpoint(lambda states: head(states), states, use_reentrant=False) for head in heads]


def one_by_one(heads, states):
    return (checkpoint(lambda states: head(states), states, use_reentrant=False) for head in heads)
