# CKPT012 info | partial(create_selective_checkpoint_contexts, every_second) | decides by `state['seen']`
# CKPT012 info | create_selective_checkpoint_contexts(Policy()) | decides by `self.seen`
# CKPT012 info | create_selective_checkpoint_contexts(make()) | decides by `seen`
# file: bar.py
from functools import partial

from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

state = {"seen": 0}


def every_second(ctx, op, *args, **kwargs):
    state["seen"] += 1
    return state["seen"] % 2 == 0


class Policy:
    seen = 0

    def __call__(self, ctx, op, *args, **kwargs):
        self.seen += 1
        return self.seen > 3


def make():
    seen = 0

    def policy(ctx, op, *args, **kwargs):
        nonlocal seen
        seen += 1
        return seen < 5

    return policy


def told(ctx, op, *args, **kwargs):
    state[ctx.is_recompute] += 1
    return state[ctx.is_recompute] > 3


def watched(ctx, op, *args, **kwargs):
    state["seen"] += 1
    return op in kept


def contexts():
    return create_selective_checkpoint_contexts(Policy())


def made():
    return create_selective_checkpoint_contexts(make())


by_name = partial(create_selective_checkpoint_contexts, every_second)
right = [partial(create_selective_checkpoint_contexts, policy) for policy in (told, watched)]
right += [partial(create_selective_checkpoint_contexts, told), partial(create_selective_checkpoint_contexts, watched)]
