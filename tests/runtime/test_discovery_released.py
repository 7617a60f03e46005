"""Stacks without checkpointing layers in released models of transformers 5 are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from ckpt_surgery.runtime.blocks.discovery import find_blocks

pytestmark = pytest.mark.torch


def blocks_of(name: str) -> Counter[tuple[str, str]]:
    """Return kinds and stacks of a released class with its own default configuration."""
    kind: Any = getattr(transformers, name)
    with torch.device("meta"):
        whole = kind(kind.config_class())
    return Counter((block.kind, block.stack) for block in find_blocks(whole))


def test_mllamas_vision_layers_are_plain_and_its_text_layers_are_not() -> None:
    blocks = blocks_of("MllamaModel")
    assert blocks == {("plain", "vision_model.transformer.layers"): 32, ("layer", "language_model.layers"): 40}


def test_gemma4s_audio_layers_are_plain() -> None:
    assert blocks_of("Gemma4AudioModel") == {("plain", "layers"): 12}


def test_clvps_three_stacks_are_plain() -> None:
    assert blocks_of("ClvpModelForConditionalGeneration") == {
        ("plain", "text_encoder_model.layers"): 20,
        ("plain", "speech_encoder_model.layers"): 20,
        ("plain", "speech_decoder_model.model.decoder.layers"): 30,
    }


def test_llama_has_layers_only() -> None:
    assert blocks_of("LlamaModel") == {("layer", "layers"): 32}


def test_swin_has_layers_inside_its_layers() -> None:
    kind: Any = transformers.SwinModel
    with torch.device("meta"):
        whole = kind(kind.config_class())
    inside = Counter(bool(block.inside) for block in find_blocks(whole))
    assert inside == {False: 4, True: 12}
