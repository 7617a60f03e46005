"""Stacks without checkpointing layers in released models of transformers 5 are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from ckpt_surgery.runtime.blocks.discovery import Block, find_blocks

pytestmark = pytest.mark.torch

STACKS: dict[str, dict[tuple[str, str], int]] = {
    "LlamaModel": {("layer", "layers"): 32},
    "MllamaModel": {("plain", "vision_model.transformer.layers"): 32, ("layer", "language_model.layers"): 40},
    "Gemma4AudioModel": {("plain", "layers"): 12},
    "ClvpModelForConditionalGeneration": {
        ("plain", "text_encoder_model.layers"): 20,
        ("plain", "speech_encoder_model.layers"): 20,
        ("plain", "speech_decoder_model.model.decoder.layers"): 30,
    },
}


def blocks_of(name: str) -> tuple[Block, ...]:
    """Find the blocks of a released class with its own default configuration."""
    kind: Any = getattr(transformers, name)
    with torch.device("meta"):
        return find_blocks(kind(kind.config_class()))


@pytest.mark.parametrize("name", STACKS)
def test_stacks_of_layers_and_of_plain_blocks_are_told_apart(name: str) -> None:
    assert Counter((block.kind, block.stack) for block in blocks_of(name)) == STACKS[name]


def test_swin_has_layers_inside_its_layers() -> None:
    assert Counter(bool(block.inside) for block in blocks_of("SwinModel")) == {False: 4, True: 12}
