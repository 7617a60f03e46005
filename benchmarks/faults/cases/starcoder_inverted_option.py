"""The option against checkpointing only sets the cache, and nothing switches checkpointing on.

It is declared with `store_false`, so that it is True unless it is given.
"""

import argparse

import torch
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

from benchmarks.faults.script import memory, train

FAULT = {
    "source": "https://github.com/bigcode-project/starcoder/issues/112",
    "kind": "never checkpointed",
    "saw": "the checkpointing option of the script did nothing",
    "right": "checkpointing is on, unless the option is given",
    "cause": ["CKPT107", "without checkpointing", "nothing is checkpointed", "not checkpointed"],
    "cure": "wrap",
}
MENDED = False


def parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seq_length", type=int, default=16)
    parser.add_argument("--batch_size", type=int, default=2)
    if MENDED:
        parser.add_argument("--no_gradient_checkpointing", action="store_true")
    else:
        parser.add_argument("--no_gradient_checkpointing", action="store_false")
    return parser


def load(args):
    config = GPTBigCodeConfig(vocab_size=64, n_positions=32, n_embd=32, n_layer=3, n_head=2)
    if MENDED:
        config.use_cache = args.no_gradient_checkpointing
        model = GPTBigCodeForCausalLM(config)
        if not args.no_gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        config.use_cache = not args.no_gradient_checkpointing
        model = GPTBigCodeForCausalLM(config)
    return model.train()


def make():
    args = parser().parse_args([])
    torch.manual_seed(0)
    ids = torch.randint(64, (args.batch_size, args.seq_length))
    return load(args), {"input_ids": ids, "labels": ids}


def symptom():
    return memory(make)


if __name__ == "__main__":
    train(make)
