"""The rules by which one field of a configuration shrinks: by its name, its type and the fields beside it.

`shrink` walks the configuration and asks here for each field; `sizes.chosen_layers` decides which layers stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ckpt_surgery.tiny.sizes import (
    ATTEMPTS,
    GRID,
    HEAD_DIM,
    HEADS,
    LAYERS,
    MELS,
    PATCH,
    POSITIONS,
    STAGE_DEPTHS,
    STAGES,
    VOCABULARY,
    WIDTH,
    ShrinkContext,
)

_LAYER_COUNT = re.compile(
    r"^(num_hidden_layers|num_layers|n_layers?|layers|depth|num_layer|encoder_depth|num_blocks"
    r"|(\w+_)?(encoder|decoder)_(num_hidden_)?layers|num_(encoder|decoder)_(hidden_)?layers"
    r"|(\w+_)?num_hidden_layers|[lxr]_layers|num_global_layers|num_(spatial|temporal|auxiliary)_layers"
    r"|num_layers_per_stack|aligner_num_add_layers|resampler_depth|num_mel_attn_blocks|max_window_layers"
    r"|(\w+_)?num_layers|num_attention_layers|num_timestamp_prediction_layers|num_pretransformer_layers"
    r"|perceiver_num_layers|num_self_attends_per_block|num_self_attention_layers|num_dit_layers)$"
)
_STAGE_COUNT = re.compile(r"^num_(hidden_)?layers$|^num_encoder_blocks$|^num_stages$")
"""Counts of stages that look like counts of layers."""
_WIDTH = re.compile(
    r"(^|_)(hidden_size|hidden_sizes|size|dim|dims|width|channels|units|features|d_model|ffn_dim|d_ff|dff|d_inner"
    r"|inner_dim|rank|inplanes|filters|n_embd|n_inner|mid_channels|hidden_dims|channel_size|ff|rel_extent"
    r"|embeds|expand|d_state|d_ssm|expert_dim|embedding_size|model_dim|per_layer_input|stem|hidden|size_mlp"
    r"|size_global|d_latents|channel_list|channel|out_channels|per_stage|proj_dims|dim_out|dim_in|hc_lowrank|dimension)$"
)
_NOT_WIDTH = re.compile(
    r"(kernel|vocab|image_size|img_size|patch_size|codebook_size|batch|chunk|block_size|window|crop|pool|stride"
    r"|merge_size|grid|resolution|position|state_dim|act_dim|visual_pos|query_dim|bbox|num_channels|in_chans"
    r"|audio_channels|max_image|min_image|image_seq|tubelet|patch_embed_input|spec_size"
    r"|sample_size|roi_size|capacity|type_vocab|expand$|temporal_patch|bin_size|frame_size|stack|cell_size|rope_feat"
    r"|group_size|frames|context_size|feature_sizes|input_channels|additional|num_samples|input_feat_size|^input_dim$"
    r"|latent_size$)"
)
_HEADS = re.compile(r"(^|_)(n_)?heads?(_per_stage)?$|^n_head$|num_attention_heads")
_KV_HEADS = re.compile(r"(kv|key_value)_(n_)?heads$|^multi_query_group_num$|num_key_value_heads|num_kv_heads")
_HEAD_DIM = re.compile(
    r"((^|_)(head_dim|d_head|head_size|dim_head|d_kv|kv_channels|dim_heads|attention_head_dim|kv_dim|key_dim)$"
    r"|^attention_key_value_channels$|^mamba_d_head$)"
)
_EXPERTS = re.compile(r"^(\w+_)?(num_(\w+_)?experts|n_routed_experts|n_experts|moe_num_experts|zero_expert_num)$")
_TOP_K = re.compile(r"^(num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k|num_experts_per_token|moe_topk|num_selects)$")
_VOCABULARY = re.compile(
    r"(^|_)vocab_size(_\w+)?$|^(num_embeds|codebook_size|num_embeddings|\w+_vocab_size"
    r"|vocab_size_\w+|encoder_hash_byte_group_vocab|src_vocab_size|tgt_vocab_size|num_(qa|object|attr|bpe|wordpiece)_labels"
    r"|head_out_channels|num_ctc_classes|ngram_vocab_size_base|num_centroids|num_hash_buckets)$"
)
_NOT_VOCABULARY = re.compile(r"type_vocab|vocab_size_divisible|char_vocab|additional_vocab")
_POSITIONS = re.compile(
    r"^(max_position_embeddings|n_positions|max_seq_len|max_sequence_length|seq_length|n_ctx|model_max_length"
    r"|max_target_positions|max_(en|de)coder_position_embeddings|max_(text|speech)_positions|block_size"
    r"|\w+_max_position_embeddings|max_pos_emb|max_text_tokens|max_ep_len|max_speech_tokens|max_text_length)$"
)
_SOURCE_POSITIONS = re.compile(r"^max_source_positions$")
_WINDOW = re.compile(
    r"^(sliding_window|sliding_window_size|attention_chunk_size|local_attention|keep_window_size|attention_window"
    r"|attention_window_size)$"
)
_TOKEN = re.compile(r"(token_ids?|_token_index|_index|_token|_tokens_ids|_id|_eos_id|_bos_id|_pad_id|token_indices)$")
_MELS = re.compile(r"^(num_mel_bins|n_mels|num_mels|feature_size|n_mel_bins|input_feat_size|mel_dim|model_in_dim)$")
_IMAGE = re.compile(r"^((input_|pretrain_)?image_size|img_size|resolution|crop_size|input_size)$")
_LATENTS = re.compile(r"^(num_query_tokens|resampler_n_latents|resampler_num_latents|num_latents|latent_query_num)$")
_IMAGE_TOKENS = re.compile(r"^(mm_tokens_per_image|num_image_tokens|image_seq_length|vision_soft_tokens_per_image)$")
_LAYER_DROP = re.compile(r"layer_?drop$")
_NOT_TOKEN = re.compile(r"(ignore_index|active_idx|lang_id|default_prompt_id|patch_position)")


def changed_value(name: str, value: Any, context: ShrinkContext) -> Any:
    """Return the value of a field in the tiny model: the original one if no rule applies to its name."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _changed_dict(name, value, context)
    if isinstance(value, (list, tuple)):
        return _changed_list(name, value, context)
    if isinstance(value, float) and _LAYER_DROP.search(name):
        return 0.0  # a layer that is skipped at random shows nothing
    rule = _rule(name, context.values) if isinstance(value, int) else None
    return rule(value, context) if rule else value


def is_ruled(name: str, value: Any) -> bool:
    """Tell whether a value must be given to the class although it derives it, because only a rule shrinks it."""
    if isinstance(value, (list, tuple)):
        return bool(value) and ((isinstance(value[0], str) and "type" in name) or name in _EXPLICIT_LISTS)
    if name == "rope_scaling":
        return isinstance(value, dict) and "mrope_section" in value
    return name in ("per_layer_config", "rope_parameters") and isinstance(value, dict)


_EXPLICIT_LISTS = (
    "hidden_sizes",
    "depths",
    "global_attn_indexes",
    "no_rope_layers",
    "moe_layers",
    "intermediate_size",
)
"""Lists that classes derive from their own defaults, not from the number of layers."""


def _rule(name: str, values: Mapping[str, Any]) -> Callable[[int, ShrinkContext], int] | None:
    staged = any(isinstance(values.get(n), (list, tuple)) for n in STAGES)
    if staged and _STAGE_COUNT.search(name):
        return None
    for pattern, exceptions, rule in _RULES:
        if pattern.search(name) and not (exceptions and exceptions.search(name)):
            return rule
    return None


def _at_most(limit: int, last_attempt: int = ATTEMPTS) -> Callable[[int, ShrinkContext], int]:
    return lambda value, context: min(value, limit) if value >= 0 and context.attempt <= last_attempt else value


def _width(value: int, context: ShrinkContext) -> int:
    if context.attempt <= 1:
        return min(value, WIDTH)
    return max(min(value, WIDTH), value // 16 // 8 * 8) if context.attempt == 2 else value


def _feature_layer(value: int, context: ShrinkContext) -> int:
    return max(min(value, LAYERS - 1), -LAYERS)


def _first_width(value: int, context: ShrinkContext) -> int:
    """Shrink the width of the first stage, if the code doubles it from stage to stage."""
    doubles = "depths" in context.values and "hidden_sizes" not in context.values
    return min(value, WIDTH // 4) if doubles and context.attempt <= 1 else _width(value, context)


def _kv_heads(value: int, context: ShrinkContext) -> int:
    heads = next((context.values[n] for n in ("num_attention_heads", "n_heads", "n_head") if n in context.values), 0)
    if context.attempt > 2:
        return value
    return min(value, HEADS if value == heads else HEADS // 2)


def _image(value: int, context: ShrinkContext) -> int:
    if context.attempt >= 1:
        return min(value, 224)
    if any(isinstance(context.values.get(n), (list, tuple)) for n in STAGES):
        return min(value, 64)
    patch = context.values.get("patch_size")
    patch = patch[0] if isinstance(patch, (list, tuple)) else patch
    return min(value, max(GRID * min(patch, PATCH), 16) if isinstance(patch, int) else 64)


_RULES: tuple[tuple[re.Pattern[str], re.Pattern[str] | None, Callable[[int, ShrinkContext], int]], ...] = (
    (_VOCABULARY, _NOT_VOCABULARY, _at_most(VOCABULARY)),
    (_TOKEN, _NOT_TOKEN, lambda value, context: context.tokens.get(value, value)),
    (
        _LAYER_COUNT,
        re.compile(r"adapter|postnet|lstm|extract|predict"),
        lambda value, context: min(value, max(context.layers, LAYERS)),
    ),
    (_SOURCE_POSITIONS, None, _at_most(32)),
    (_POSITIONS, re.compile(r"^(left|right)_"), _at_most(POSITIONS)),
    (_WINDOW, None, _at_most(8)),
    (_EXPERTS, re.compile(r"shared"), _at_most(4)),
    (_TOP_K, None, _at_most(2)),
    (re.compile(r"^(n_group|num_expert_group)$"), None, _at_most(2)),
    (re.compile(r"^topk_group$"), None, _at_most(1)),
    (re.compile(r"^rotary_dim$"), None, _at_most(HEAD_DIM, 2)),
    (_KV_HEADS, None, _kv_heads),
    (_HEAD_DIM, None, _at_most(HEAD_DIM, 2)),
    (
        _HEADS,
        None,
        lambda value, context: (
            value if context.attempt > 2 or value <= 0 else 1 << (min(value, HEADS).bit_length() - 1)
        ),
    ),
    (_MELS, None, _at_most(MELS, 1)),
    (_IMAGE, None, _image),
    (re.compile(r"^patch_size$"), None, _at_most(PATCH, 0)),
    (re.compile(r"^num_conv_pos_embeddings$"), None, _at_most(16)),
    (re.compile(r"^num_conv_pos_embedding_groups$"), None, _at_most(4)),
    (re.compile(r"^(num_queries|num_object_queries|two_stage_num_proposals)$"), None, _at_most(8)),
    (_LATENTS, None, _at_most(4)),
    (_IMAGE_TOKENS, None, _at_most(4, 0)),
    (re.compile(r"^(n_groups|mamba_n_groups)$"), None, _at_most(2)),
    (re.compile(r"^n_window$"), None, _at_most(8)),
    (re.compile(r"^n_window_infer$"), None, _at_most(32)),
    (re.compile(r"^num_pos_feats$"), None, _at_most(WIDTH // 2, 1)),
    (re.compile(r"^upsample_groups$"), None, _at_most(WIDTH)),
    (re.compile(r"^(num_frames|frames_per_clip|max_temporal_embeddings)$"), None, _at_most(4, 0)),
    (re.compile(r"^(train_num_points|num_denoising)$"), None, _at_most(16)),
    (re.compile(r"^(index_topk|index_topk_blocks|num_codevectors_per_group|num_negatives)$"), None, _at_most(8)),
    (re.compile(r"^first_k_dense_replace$"), None, _at_most(1)),
    (re.compile(r"^num_kv_shared_layers$"), None, lambda value, context: min(value, context.layers // 2)),
    (re.compile(r"(^|_)feature_layers?$"), None, _feature_layer),
    (re.compile(r"^query_pre_attn_scalar$"), None, _at_most(HEAD_DIM, 2)),
    (
        re.compile(r"^window_size$"),
        None,
        lambda value, context: min(value, 2) if context.attempt == 0 and "depths" in context.values else value,
    ),
    (re.compile(r"^(embed_dim|patch_embeds_hidden_size|embedding_size)$"), None, _first_width),
    (_WIDTH, _NOT_WIDTH, _width),
)  # fmt: skip


def _changed_list(name: str, value: Any, context: ShrinkContext) -> Any:
    if not value:
        return value
    if context.old_layers and len(value) == context.old_layers and not name.startswith("depth"):
        return type(value)(changed_value(name, item, context) for item in (value[i] for i in context.kept_layers))
    if name.startswith("vision_feature_layer"):
        return type(value)(_feature_layer(item, context) for item in value)
    if (kept := context.kept_indices(name, value)) is not None:
        return kept
    if name in STAGE_DEPTHS:
        return type(value)(min(item, LAYERS) if isinstance(item, int) else item for item in value)
    if _rule(name, context.values) in (_width, _first_width) and context.attempt <= 1:
        return _each(value, lambda item: min(item, WIDTH) if type(item) is int else item)
    return _each(value, lambda item: changed_value(name, item, context))


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    return type(value)(_each(item, change) if isinstance(item, (list, tuple)) else change(item) for item in value)


def _changed_dict(name: str, value: dict[Any, Any], context: ShrinkContext) -> dict[Any, Any]:
    if name in ("rope_parameters", "rope_scaling"):
        return _shrunk_rope(value, context)
    if name == "per_layer_config":
        layers = {int(k): (v, replace(context, values={**context.values, **v})) for k, v in value.items()}
        by_layer = {k: _changed_dict("", v, own) for k, (v, own) in layers.items()}
        return {new: by_layer[old] for new, old in enumerate(context.kept_layers) if old in by_layer}
    return {k: changed_value(k, v, context) if isinstance(k, str) else v for k, v in value.items()}


def _shrunk_rope(rope: dict[str, Any], context: ShrinkContext) -> dict[str, Any]:
    """Shrink rotary parameters, so that sections and factors of frequencies fit the tiny number of these."""
    values, pairs = context.values, 0  # the frequencies of a head; 0 if their number is unknown or stays
    if context.attempt <= 2:
        head, width, heads = (values.get(name) for name in ("head_dim", "hidden_size", "num_attention_heads"))
        if not isinstance(head, int) and isinstance(width, int) and isinstance(heads, int):
            head = min(width, WIDTH) // min(heads, HEADS)
        if isinstance(head, int):
            share = rope.get("partial_rotary_factor", values.get("partial_rotary_factor")) or 1.0
            pairs = int(min(head, HEAD_DIM) * share) // 2
    new: dict[str, Any] = {}
    nested = any(isinstance(item, dict) for item in rope.values())
    for key, item in {**({} if nested or not rope else context.rope), **rope}.items():
        if isinstance(item, dict):
            new[key] = _shrunk_rope(item, context)
        elif pairs and key in ("short_factor", "long_factor"):
            new[key] = (list(item) * pairs)[:pairs]
        elif pairs and key == "mrope_section" and item:
            sections, total = list(item), sum(item)
            if total != pairs:
                sections = [max(1, section * pairs // total) for section in sections]
                sections[-1] += pairs - sum(sections)
            new[key] = sections
        else:
            new[key] = item
    return new


def names_token(name: str) -> bool:
    """Tell whether a field of this name holds ids of special tokens."""
    return bool(_TOKEN.search(name)) and not _NOT_TOKEN.search(name) and not _VOCABULARY.search(name)
