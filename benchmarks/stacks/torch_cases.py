"""Models of torch itself, torchvision and timm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.stacks.case import Case

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


def cases() -> Iterator[Case]:
    """Every model of the three."""
    encoder = {"d_model": 32, "nhead": 4, "dim_feedforward": 64, "batch_first": True}
    yield Case("torch", "TransformerEncoder", partial(_encoder, 4, encoder))
    yield Case("torch", "TransformerEncoder", partial(_encoder, 12, {**encoder, "d_model": 64}), "12 layers")
    yield Case("torch", "Transformer", partial(_transformer, encoder))
    for name, shown in _TORCHVISION.items():
        yield Case("torchvision", shown, partial(_torchvision, name), "as released")
    yield Case("torchvision", "ViT-B/16", _narrow_vit, "narrow")
    yield Case("timm", "ViT", _tiny_timm_vit)
    for name, shown in _TIMM.items():
        yield Case("timm", shown, partial(_timm, name), "as released")


def _encoder(layers: int, options: dict[str, Any]) -> tuple[nn.Module, tuple[Tensor]]:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), layers, enable_nested_tensor=False)
    return model, (torch.randn(2, 16, options["d_model"]),)


def _transformer(options: dict[str, Any]) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model = nn.Transformer(num_encoder_layers=3, num_decoder_layers=3, **options)
    return model, (torch.randn(2, 16, 32), torch.randn(2, 8, 32))


def _torchvision(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    from torchvision import models

    return getattr(models, name)(num_classes=10), (torch.randn(2, 3, _PIXELS, _PIXELS),)


def _narrow_vit() -> tuple[nn.Module, tuple[Tensor]]:
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(_PIXELS, patch_size=16, num_layers=12, num_heads=4, hidden_dim=64, mlp_dim=256)
    return model, (torch.randn(2, 3, _PIXELS, _PIXELS),)


def _tiny_timm_vit() -> tuple[nn.Module, tuple[Tensor]]:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=4, num_classes=4)
    return model, (torch.randn(2, 3, 32, 32),)


def _timm(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    import timm

    model = timm.create_model(name, num_classes=10)
    pixels = model.default_cfg["input_size"][-1]
    return model, (torch.randn(1 if pixels > 224 else 2, 3, pixels, pixels),)
