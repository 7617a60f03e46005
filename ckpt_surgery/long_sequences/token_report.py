"""Say in words how much memory a token takes on the device and on the host, and how many tokens fit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import nn

from ckpt_surgery.long_sequences.cut_block import BlockCut
from ckpt_surgery.long_sequences.token_bytes import FREE_SHARE
from ckpt_surgery.runtime.offload.host_memory import HostMemory
from ckpt_surgery.text import size

_ASSUMED = 80 * 10**9
"""The bytes of the card if the model is on none."""
_ROUNDED = 1000  # numbers of tokens from here on are given in thousands


def token_lines(model: nn.Module, cuts: Mapping[nn.Module, BlockCut], keep: int, *, on_host: bool = True) -> list[str]:
    """Describe what a token takes, by the last calls of a model's blocks.

    `keep` bytes of their inputs may stay on the device; the others are `on_host`, or on a disk.
    """
    if any(cut.reason for cut in cuts.values()):
        return ["a token: what it takes is not known, as not all blocks are cut"]
    seen = [(cut.token, cut.parked) for cut in cuts.values() if cut.token is not None]
    if not seen:
        return ["a token: what it takes is known after the first step"]
    needs = [(token.on_device(parks=parks), token) for token, parks in seen]
    device, widest = max(needs, key=lambda need: need[0])
    host = sum(token.input for token, _ in seen)
    lines = [
        f"a token: {device / widest.input:.1f} hidden states ({size(device)}) on the device, {size(host)} on the "
        f"{'host' if on_host else 'disk'} for {len(seen)} inputs of blocks; counted for flash attention, not measured",
        f"fits: about {_fits(model, device, keep)}",
    ]
    if on_host and (memory := HostMemory.now()) is not None:
        lines.append(f"the host has {size(memory.free)} free: {_tokens(memory.free, host)} tokens")
    return lines


def _fits(model: nn.Module, device: int, keep: int) -> str:
    place = next(model.parameters()).device
    if place.type == "cuda":
        card = torch.cuda.get_device_properties(place)
        there = torch.cuda.memory_allocated(place)
        free = int(card.total_memory * FREE_SHARE) - there
        return f"{_tokens(free - keep, device)} tokens on this {card.name}, beside the {size(there)} allocated now"
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    there = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers())) + 3 * trained
    free = int(_ASSUMED * FREE_SHARE) - there
    return (
        f"{_tokens(free - keep, device)} tokens on a card of 80 GB (assumed, as the model is on none), beside "
        f"{size(there)} of weights, gradients and AdamW's states"
    )


def _tokens(free: int, each: int) -> str:
    count = max(free // each, 0)
    return f"{count // _ROUNDED * _ROUNDED:,}" if count >= _ROUNDED else f"{count}"
