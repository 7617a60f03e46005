"""Models of diffusers, open_clip, sentence-transformers, x-transformers, torchtune and lerobot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.stacks.case import Case

_Given = tuple[nn.Module, Mapping[str, Any] | tuple[Any, ...]]


def cases() -> Iterator[Case]:
    """Every model of these libraries."""
    yield Case("diffusers", "UNet2DConditionModel", partial(_conditional_unet, (32, 64), 1))
    yield Case(
        "diffusers", "UNet2DConditionModel", partial(_conditional_unet, (32, 64, 128, 128), 2), "Stable Diffusion"
    )
    yield Case("diffusers", "UNet2DModel", _unet)
    yield Case("diffusers", "AutoencoderKL", partial(_vae, (32, 64)))
    yield Case("diffusers", "AutoencoderKL", partial(_vae, (32, 64, 128, 128)), "Stable Diffusion")
    for name, options, inputs in _TRANSFORMERS:
        yield Case("diffusers", name, partial(_diffusers, name, options, inputs))
    yield Case("diffusers", "AutoencoderKLWan", _wan_vae)
    yield Case("open_clip", "CLIP (ViT)", partial(_open_clip, 3))
    yield Case("open_clip", "CLIP (ViT)", partial(_open_clip, 12), "12 layers")
    yield Case("open_clip", "CLIP (ResNet)", partial(_open_clip, (1, 2, 2, 1)))
    yield Case("open_clip", "CoCa", _coca)
    yield Case("sentence-transformers", "BERT", _sentence_transformer)
    yield Case("x-transformers", "Decoder", partial(_x_transformer, 3, "Decoder"))
    yield Case("x-transformers", "Decoder", partial(_x_transformer, 12, "Decoder"), "12 layers")
    yield Case("x-transformers", "Encoder", partial(_x_transformer, 3, "Encoder"))
    yield Case("torchtune", "Llama 3.1", partial(_torchtune, 3))
    yield Case("torchtune", "Llama 3.1", partial(_torchtune, 16), "16 layers")


def _conditional_unet(channels: tuple[int, ...], layers: int) -> _Given:
    from diffusers import UNet2DConditionModel

    down = ("CrossAttnDownBlock2D",) * (len(channels) - 1) + ("DownBlock2D",)
    up = ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (len(channels) - 1)
    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=channels,
        layers_per_block=layers,
        down_block_types=down,
        up_block_types=up,
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return model, (torch.randn(2, 4, 16, 16), torch.tensor([1, 5]), torch.randn(2, 7, 32))


def _unet() -> _Given:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return model, (torch.randn(2, 3, 16, 16), torch.tensor([1, 5]))


def _vae(channels: tuple[int, ...]) -> _Given:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=channels,
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        layers_per_block=2,
        norm_num_groups=8,
    )
    return model, (torch.randn(2, 3, 32, 32),)


def _wan_vae() -> _Given:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(base_dim=8, z_dim=4, num_res_blocks=1), (torch.randn(1, 3, 5, 16, 16),)


_HEADS: dict[str, Any] = {"attention_head_dim": 16, "num_attention_heads": 2}
_POOLED = {"joint_attention_dim": 32, "pooled_projection_dim": 16}


def _sd3() -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(2, 16, 8, 8),
        "encoder_hidden_states": torch.randn(2, 7, 32),
        "pooled_projections": torch.randn(2, 16),
        "timestep": torch.tensor([1, 5]),
    }


def _flux() -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(2, 16, 64),
        "encoder_hidden_states": torch.randn(2, 7, 32),
        "pooled_projections": torch.randn(2, 16),
        "timestep": torch.tensor([0.1, 0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(7, 3),
    }


def _pixart() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "encoder_hidden_states": torch.randn(2, 7, 32),
        "timestep": torch.tensor([1, 5]),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def _cogvideox() -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(1, 2, 16, 8, 8),
        "encoder_hidden_states": torch.randn(1, 7, 16),
        "timestep": torch.tensor([1]),
    }


def _wan() -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(1, 16, 2, 8, 8),
        "encoder_hidden_states": torch.randn(1, 7, 16),
        "timestep": torch.tensor([1]),
    }


_TRANSFORMERS: tuple[tuple[str, dict[str, Any], Any], ...] = (
    (
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "num_layers": 3,
            "caption_projection_dim": 32,
            "pos_embed_max_size": 8,
            **_HEADS,
            **_POOLED,
        },
        _sd3,
    ),
    (
        "FluxTransformer2DModel",
        {"num_layers": 2, "num_single_layers": 3, "axes_dims_rope": (4, 4, 8), **_HEADS, **_POOLED},
        _flux,
    ),
    (
        "PixArtTransformer2DModel",
        {"num_layers": 3, "sample_size": 8, "cross_attention_dim": 32, "caption_channels": 32, **_HEADS},
        _pixart,
    ),
    (
        "CogVideoXTransformer3DModel",
        {
            "num_layers": 3,
            "text_embed_dim": 16,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
            "time_embed_dim": 16,
            "max_text_seq_length": 7,
            **_HEADS,
        },
        _cogvideox,
    ),
    (
        "WanTransformer3DModel",
        {
            "num_layers": 3,
            "text_dim": 16,
            "freq_dim": 16,
            "ffn_dim": 32,
            "attention_head_dim": 12,
            "num_attention_heads": 2,
        },
        _wan,
    ),
)
"""Transformers of diffusers: class, configuration, inputs."""


def _diffusers(name: str, options: dict[str, Any], inputs: Any) -> _Given:
    import diffusers

    return getattr(diffusers, name)(**options), inputs()


def _open_clip(layers: Any) -> _Given:
    from open_clip.model import CLIP

    vision = {"layers": layers, "width": 64 if isinstance(layers, int) else 16, "image_size": 32, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 4, "layers": 3}
    model = CLIP(embed_dim=32, vision_cfg=vision, text_cfg=text)
    return model, (torch.randn(2, 3, 32, 32), torch.randint(1, 50, (2, 8)))


def _coca() -> _Given:
    from open_clip.coca_model import CoCa

    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 4, "layers": 2, "embed_cls": True}
    vision = {"layers": 2, "width": 64, "image_size": 32, "patch_size": 8, "attentional_pool": True}
    model = CoCa(
        embed_dim=32,
        vision_cfg={**vision, "attn_pooler_heads": 4, "output_tokens": True},
        text_cfg={**text, "output_tokens": True},
        multimodal_cfg={"context_length": 8, "vocab_size": 50, "width": 32, "heads": 4, "layers": 2},
    )
    for parameter in model.parameters():  # some of them are left uninitialised
        nn.init.normal_(parameter, std=0.1)
    return model, (torch.randn(2, 3, 32, 32), torch.randint(1, 50, (2, 8)))


def _sentence_transformer() -> _Given:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
        BertTokenizerFast(vocab_file=f"{folder}/vocab.txt").save_pretrained(folder)
        BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
        model = SentenceTransformer(modules=[Transformer(folder), Pooling(32)], device="cpu")
    tokens = {"input_ids": torch.randint(5, 13, (2, 8)), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    return model, (tokens,)


def _x_transformer(depth: int, kind: str) -> _Given:
    import x_transformers

    layers = getattr(x_transformers, kind)(dim=32, depth=depth, heads=4)
    model = x_transformers.TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=layers)
    return model, (torch.randint(0, 32, (2, 16)),)


def _torchtune(layers: int) -> _Given:
    from torchtune.models.llama3_1 import llama3_1

    model = llama3_1(
        vocab_size=64,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        embed_dim=32,
        max_seq_len=16,
        intermediate_dim=64,
    )
    return model, (torch.randint(0, 64, (2, 16)),)
