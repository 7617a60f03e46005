"""Tiny random models, with inputs, of the six families that transformers 4.57.6 does not checkpoint as layers.

CLVP counts three times: its text encoder, its decoder, and its conditioning encoder in front of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

BATCH, LENGTH, VOCABULARY = 2, 8, 64
SEED = 7


@dataclass(frozen=True)
class Case:
    """One model to train: `build` makes it with random weights, `blocks` finds what must be checkpointed.

    `inputs` are the model's keyword arguments. `generate` are those of `model.generate`, None where the model
    generates nothing.
    """

    build: Callable[[], nn.Module]
    blocks: Callable[[nn.Module], dict[str, nn.Module]]
    inputs: Callable[[], dict[str, Any]]
    generate: Callable[[], dict[str, Any]] | None = None


def nested_layers(model: nn.Module, blocks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the checkpointing layers inside one of `blocks`."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, GradientCheckpointingLayer) and any(name.startswith(f"{block}.") for block in blocks)
    }


def _under(*stacks: str) -> Callable[[nn.Module], dict[str, nn.Module]]:
    """Return the children of the named stacks, by full name."""

    def blocks(model: nn.Module) -> dict[str, nn.Module]:
        return {f"{path}.{n}": m for path in stacks for n, m in model.get_submodule(path).named_children()}

    return blocks


def _tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(SEED))


def _language_inputs() -> dict[str, Any]:
    return {"input_ids": _tokens(), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long), "labels": _tokens()}


def _generate_inputs() -> dict[str, Any]:
    length = LENGTH // 2
    return {
        "input_ids": _tokens(length),
        "attention_mask": torch.ones(BATCH, length, dtype=torch.long),
        "max_new_tokens": 6,
        "min_new_tokens": 6,
        "do_sample": False,
        "use_cache": True,
        "pad_token_id": 0,
    }


def _random(model_class: Any, config: Any) -> nn.Module:
    torch.manual_seed(SEED)
    model: nn.Module = model_class(config)
    return model


def _double(model_class: Any, config: Any) -> nn.Module:
    """Use float64, so that a difference is a fault and not the order of a sum."""
    return _random(model_class, config).double()


def _gpt_bigcode() -> nn.Module:
    config = transformers.GPTBigCodeConfig(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_inner=64,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return _double(transformers.GPTBigCodeForCausalLM, config)


def _xlstm() -> nn.Module:
    # the native kernels fail in training from one chunk (64 tokens) on, so LENGTH stays below;
    # a smaller hidden size would make the cache disagree with the layers, as its sizes round up to 64
    config = transformers.xLSTMConfig(vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=3, num_heads=2)
    return _double(transformers.xLSTMForCausalLM, config)


def _zamba() -> nn.Module:
    config = transformers.ZambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        use_mamba_kernels=False,
        attention_dropout=0.1,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return _double(transformers.ZambaForCausalLM, config)


def _zamba2() -> nn.Module:
    config = transformers.Zamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        mamba_d_state=8,
        n_mamba_heads=4,
        mamba_ngroups=2,
        chunk_size=8,
        num_mem_blocks=1,
        use_mem_rope=True,
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        use_shared_attention_adapter=True,
        adapter_rank=4,
        attention_dropout=0.1,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return _double(transformers.Zamba2ForCausalLM, config)


def _swiftformer() -> nn.Module:
    config = transformers.SwiftFormerConfig(
        image_size=32,
        depths=[1, 2, 1, 1],
        embed_dims=[16, 16, 32, 32],
        mlp_ratio=2,
        drop_path_rate=0.1,
        drop_mlp_rate=0.1,
        drop_conv_encoder_rate=0.1,
        layer_scale_init_value=0.1,
        num_labels=3,
    )
    return _double(transformers.SwiftFormerForImageClassification, config)


def _swiftformer_blocks(model: nn.Module) -> dict[str, nn.Module]:
    stack = _under("swiftformer.encoder.network")(model)
    return {n: m for n, m in stack.items() if type(m).__name__ == "SwiftFormerStage"}


def _swiftformer_inputs() -> dict[str, Any]:
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    return {"pixel_values": pixels, "labels": torch.tensor([0, 1, 2, 0])}


def _clvp_config() -> Any:
    # the rotary embedding needs heads of 32 at least; models stay in float32, the decoder's mask overflows in float64
    encoder = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 64,
        "projection_dim": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    decoder = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "max_text_tokens": 64,
        "num_mel_attn_blocks": 2,
        "feature_size": 10,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_fixing_codes": [3, 4, 4, 5],
    }
    return transformers.ClvpConfig(text_config=encoder, speech_config=encoder, decoder_config=decoder)


class _SpokenPrompt(nn.Module):
    """CLVP's conditioning encoder before its decoder: the path on which the encoder gets gradients.

    The model's own contrastive loss goes through an argmax and reaches neither.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clvp = transformers.ClvpModelForConditionalGeneration(_clvp_config())

    def gradient_checkpointing_enable(self, options: dict[str, bool]) -> None:
        self.clvp.gradient_checkpointing_enable(options)

    def gradient_checkpointing_disable(self) -> None:
        self.clvp.gradient_checkpointing_disable()

    def forward(self, input_features: Tensor, input_ids: Tensor) -> Any:
        prompt = self.clvp.conditioning_encoder(input_features=input_features, input_ids=input_ids)
        return self.clvp.speech_decoder_model(inputs_embeds=prompt, use_cache=False)


def _clvp_prompt() -> nn.Module:
    torch.manual_seed(SEED)
    return _SpokenPrompt()


def _clvp_prompt_inputs() -> dict[str, Any]:
    mel = torch.randn(BATCH, 10, LENGTH, generator=torch.Generator().manual_seed(SEED))
    return {"input_features": mel, "input_ids": _tokens()}


CASES: dict[str, Case] = {
    "gpt_bigcode": Case(_gpt_bigcode, _under("transformer.h"), _language_inputs, _generate_inputs),
    "xlstm": Case(
        _xlstm, _under("backbone.blocks"), lambda: {"input_ids": _tokens(), "labels": _tokens()}, _generate_inputs
    ),
    "zamba": Case(_zamba, _under("model.layers"), _language_inputs, _generate_inputs),
    "zamba2": Case(_zamba2, _under("model.layers"), _language_inputs, _generate_inputs),
    "swiftformer": Case(_swiftformer, _swiftformer_blocks, _swiftformer_inputs),
    "clvp_encoder": Case(
        lambda: _random(transformers.ClvpEncoder, _clvp_config().text_config),
        _under("layers"),
        lambda: {"input_ids": _tokens(), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long)},
    ),
    "clvp_decoder": Case(
        lambda: _random(transformers.ClvpForCausalLM, _clvp_config().decoder_config),
        _under("model.decoder.layers"),
        _language_inputs,
        _generate_inputs,
    ),
    "clvp_conditioning_encoder": Case(
        _clvp_prompt,
        _under("clvp.conditioning_encoder.mel_attn_blocks", "clvp.speech_decoder_model.model.decoder.layers"),
        _clvp_prompt_inputs,
    ),
}
