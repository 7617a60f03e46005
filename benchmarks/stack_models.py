"""The models of other libraries that `stacks` wraps: torch, torchvision, timm, diffusers, open_clip and more."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, Mapping[str, Any] | tuple[Any, ...]]
"""A model with random weights, and inputs for its forward: keyword arguments, or positional ones."""
_PIXELS = 64
_TORCHVISION = {
    "resnet50": "ResNet-50",
    "densenet121": "DenseNet-121",
    "efficientnet_b0": "EfficientNet-B0",
    "mobilenet_v3_small": "MobileNetV3-S",
    "regnet_y_400mf": "RegNetY-400MF",
    "convnext_tiny": "ConvNeXt-T",
    "swin_t": "Swin-T",
    "vgg11": "VGG-11",
}
_TIMM = {
    "vit_tiny_patch16_224": "ViT-Ti/16",
    "swin_tiny_patch4_window7_224": "Swin-T",
    "swinv2_tiny_window8_256": "SwinV2-T",
    "convnext_tiny": "ConvNeXt-T",
    "resnet50": "ResNet-50",
    "efficientnet_b0": "EfficientNet-B0",
    "eva02_tiny_patch14_224": "EVA02-Ti/14",
    "maxvit_tiny_tf_224": "MaxViT-T",
    "mixer_s32_224": "Mixer-S/32",
    "regnety_002": "RegNetY-200MF",
    "deit3_small_patch16_224": "DeiT-III-S",
    "coatnet_0_rw_224": "CoAtNet-0",
}


def _encoder(layers: int, options: dict[str, Any]) -> Made:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), layers, enable_nested_tensor=False)
    return model, (torch.randn(2, 16, options["d_model"]),)


def _transformer(options: dict[str, Any]) -> Made:
    model = nn.Transformer(num_encoder_layers=3, num_decoder_layers=3, **options)
    return model, (torch.randn(2, 16, 32), torch.randn(2, 8, 32))


def _torchvision(name: str) -> Made:
    from torchvision import models

    return getattr(models, name)(num_classes=10), (torch.randn(2, 3, _PIXELS, _PIXELS),)


def _narrow_vit() -> Made:
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(_PIXELS, patch_size=16, num_layers=12, num_heads=4, hidden_dim=64, mlp_dim=256)
    return model, (torch.randn(2, 3, _PIXELS, _PIXELS),)


def _tiny_timm_vit() -> Made:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=4, num_classes=4)
    return model, (torch.randn(2, 3, 32, 32),)


def _timm(name: str) -> Made:
    import timm

    model = timm.create_model(name, num_classes=10)
    pixels = model.default_cfg["input_size"][-1]
    return model, (torch.randn(1 if pixels > 224 else 2, 3, pixels, pixels),)


def _conditional_unet(channels: tuple[int, ...], layers: int) -> Made:
    from diffusers import UNet2DConditionModel

    down = ("CrossAttnDownBlock2D",) * (len(channels) - 1) + ("DownBlock2D",)
    up = ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (len(channels) - 1)
    types = {"down_block_types": down, "up_block_types": up, "cross_attention_dim": 32}
    sizes = {"sample_size": 16, "block_out_channels": channels, "layers_per_block": layers}
    model = UNet2DConditionModel(**sizes, **types, attention_head_dim=8, norm_num_groups=8)
    return model, (torch.randn(2, 4, 16, 16), torch.tensor([1, 5]), torch.randn(2, 7, 32))


def _unet() -> Made:
    from diffusers import UNet2DModel

    types = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    sizes = {"sample_size": 16, "block_out_channels": (32, 64), "layers_per_block": 2}
    model = UNet2DModel(**sizes, **types, attention_head_dim=8, norm_num_groups=8)
    return model, (torch.randn(2, 3, 16, 16), torch.tensor([1, 5]))


def _vae(channels: tuple[int, ...]) -> Made:
    from diffusers import AutoencoderKL

    types = {f"{way}_block_types": (f"{name}Block2D",) * len(channels) for way, name in _CODERS.items()}
    model = AutoencoderKL(block_out_channels=channels, **types, layers_per_block=2, norm_num_groups=8)
    return model, (torch.randn(2, 3, 32, 32),)


def _wan_vae() -> Made:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(base_dim=8, z_dim=4, num_res_blocks=1), (torch.randn(1, 3, 5, 16, 16),)


_CODERS = {"down": "DownEncoder", "up": "UpDecoder"}
_HEADS: dict[str, Any] = {"attention_head_dim": 16, "num_attention_heads": 2}
_POOLED = {"joint_attention_dim": 32, "pooled_projection_dim": 16}


def _pooled() -> dict[str, Any]:
    return {"pooled_projections": torch.randn(2, 16)}


def _placed() -> dict[str, Any]:
    return {**_pooled(), "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(7, 3)}


def _unsized() -> dict[str, Any]:
    return {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}


_TRANSFORMERS: dict[str, tuple[Any, ...]] = {
    "SD3Transformer2DModel": (
        {
            "sample_size": 8,
            "num_layers": 3,
            "caption_projection_dim": 32,
            "pos_embed_max_size": 8,
            **_HEADS,
            **_POOLED,
        },
        *((2, 16, 8, 8), (2, 7, 32), [1, 5], _pooled),
    ),
    "FluxTransformer2DModel": (
        {"num_layers": 2, "num_single_layers": 3, "axes_dims_rope": (4, 4, 8), **_HEADS, **_POOLED},
        *((2, 16, 64), (2, 7, 32), [0.1, 0.5], _placed),
    ),
    "PixArtTransformer2DModel": (
        {"num_layers": 3, "sample_size": 8, "cross_attention_dim": 32, "caption_channels": 32, **_HEADS},
        *((2, 4, 8, 8), (2, 7, 32), [1, 5], _unsized),
    ),
    "CogVideoXTransformer3DModel": (
        {"num_layers": 3, "text_embed_dim": 16, "time_embed_dim": 16, "max_text_seq_length": 7, **_HEADS}
        | {"sample_width": 8, "sample_height": 8, "sample_frames": 5},
        *((1, 2, 16, 8, 8), (1, 7, 16), [1]),
    ),
    "WanTransformer3DModel": (
        {"num_layers": 3, "text_dim": 16, "freq_dim": 16, "ffn_dim": 32, **_HEADS, "attention_head_dim": 12},
        *((1, 16, 2, 8, 8), (1, 7, 16), [1]),
    ),
}
"""Transformers of diffusers: configuration, shapes of the hidden states and of the text, time, and other inputs."""


def _diffusers(
    name: str,
    options: dict[str, Any],
    hidden: tuple[int, ...],
    text: tuple[int, ...],
    time: list[float],
    more: Callable[[], dict[str, Any]] = dict,
) -> Made:
    import diffusers

    model = getattr(diffusers, name)(**options)
    states = {"hidden_states": torch.randn(hidden), "encoder_hidden_states": torch.randn(text)}
    return model, {**states, **more(), "timestep": torch.tensor(time)}


def _open_clip(layers: Any) -> Made:
    from open_clip.model import CLIP

    vision = {"layers": layers, "width": 64 if isinstance(layers, int) else 16, "image_size": 32, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 4, "layers": 3}
    model = CLIP(embed_dim=32, vision_cfg=vision, text_cfg=text)
    return model, (torch.randn(2, 3, 32, 32), torch.randint(1, 50, (2, 8)))


def _coca() -> Made:
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


def _sentence_transformer() -> Made:
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


def _x_transformer(depth: int, kind: str) -> Made:
    import x_transformers

    layers = getattr(x_transformers, kind)(dim=32, depth=depth, heads=4)
    model = x_transformers.TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=layers)
    return model, (torch.randint(0, 32, (2, 16)),)


def _torchtune(layers: int) -> Made:
    from torchtune.models.llama3_1 import llama3_1

    sizes = {"vocab_size": 64, "embed_dim": 32, "max_seq_len": 16, "intermediate_dim": 64}
    model = llama3_1(**sizes, num_layers=layers, num_heads=4, num_kv_heads=2)
    return model, (torch.randint(0, 64, (2, 16)),)


_ENCODER = {"d_model": 32, "nhead": 4, "dim_feedforward": 64, "batch_first": True}
MODELS: dict[str, dict[tuple[str, str], Callable[[], Made]]] = {
    "torch": {
        ("TransformerEncoder", "tiny"): partial(_encoder, 4, _ENCODER),
        ("TransformerEncoder", "12 layers"): partial(_encoder, 12, {**_ENCODER, "d_model": 64}),
        ("Transformer", "tiny"): partial(_transformer, _ENCODER),
    },
    "torchvision": {
        **{(shown, "as released"): partial(_torchvision, name) for name, shown in _TORCHVISION.items()},
        ("ViT-B/16", "narrow"): _narrow_vit,
    },
    "timm": {
        ("ViT", "tiny"): _tiny_timm_vit,
        **{(shown, "as released"): partial(_timm, name) for name, shown in _TIMM.items()},
    },
    "diffusers": {
        ("UNet2DConditionModel", "tiny"): partial(_conditional_unet, (32, 64), 1),
        ("UNet2DConditionModel", "Stable Diffusion"): partial(_conditional_unet, (32, 64, 128, 128), 2),
        ("UNet2DModel", "tiny"): _unet,
        ("AutoencoderKL", "tiny"): partial(_vae, (32, 64)),
        ("AutoencoderKL", "Stable Diffusion"): partial(_vae, (32, 64, 128, 128)),
        **{(name, "tiny"): partial(_diffusers, name, *given) for name, given in _TRANSFORMERS.items()},
        ("AutoencoderKLWan", "tiny"): _wan_vae,
    },
    "open_clip": {
        ("CLIP (ViT)", "tiny"): partial(_open_clip, 3),
        ("CLIP (ViT)", "12 layers"): partial(_open_clip, 12),
        ("CLIP (ResNet)", "tiny"): partial(_open_clip, (1, 2, 2, 1)),
        ("CoCa", "tiny"): _coca,
    },
    "sentence-transformers": {("BERT", "tiny"): _sentence_transformer},
    "x-transformers": {
        ("Decoder", "tiny"): partial(_x_transformer, 3, "Decoder"),
        ("Decoder", "12 layers"): partial(_x_transformer, 12, "Decoder"),
        ("Encoder", "tiny"): partial(_x_transformer, 3, "Encoder"),
    },
    "torchtune": {("Llama 3.1", "tiny"): partial(_torchtune, 3), ("Llama 3.1", "16 layers"): partial(_torchtune, 16)},
}
"""What makes a model, by library, and by its name with its proportions: "tiny", or those of a released one."""
