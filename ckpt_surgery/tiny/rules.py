"""The rules by which one field of a configuration shrinks: by its name, its kind and its neighbours.

`shrink` walks the configuration and asks here for each field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PretrainedConfig

STEPS = 4
"""Rungs of the ladder. 0 and 1: one width everywhere; 1 also keeps image, window and kernel sizes. 2: widths
keep their proportions. 3: only layers, experts, vocabulary and positions shrink."""

VOCABULARY = 128
WIDTH = 64
HEADS = 4
HEAD_DIM = 16
"""Rotary parts of a head can still be halved twice, for rows and columns."""
LAYERS = 2
PATCH = 8
GRID = 4
"""Patches along each side of an image: mergers of two by two still leave more than one."""
POSITIONS = 128
MELS = 32


@dataclass(frozen=True)
class Context:
    """What the rules for one configuration need to know besides the value: its neighbours and the rung."""

    values: Mapping[str, Any]
    step: int
    old_layers: int
    picks: tuple[int, ...]
    """The layers that stay, by their place in the original."""
    tokens: Mapping[int, int]
    rope: Mapping[str, Any]
    """Rotary parameters that the model assumes where the configuration does not say them."""

    @property
    def layers(self) -> int:
        """How many layers the tiny form has."""
        return len(self.picks)


# --- layers -----------------------------------------------------------------------------------------------

_LAYER_COUNT = re.compile(
    r"^(num_hidden_layers|num_layers|n_layers?|layers|depth|num_layer|encoder_depth|num_blocks"
    r"|(\w+_)?(encoder|decoder)_(num_hidden_)?layers|num_(encoder|decoder)_(hidden_)?layers"
    r"|(\w+_)?num_hidden_layers|[lxr]_layers|num_global_layers|num_(spatial|temporal|auxiliary)_layers"
    r"|num_layers_per_stack|aligner_num_add_layers|resampler_depth|num_mel_attn_blocks|max_window_layers"
    r"|(\w+_)?num_layers|num_attention_layers|num_timestamp_prediction_layers|num_pretransformer_layers"
    r"|perceiver_num_layers|num_self_attends_per_block|num_self_attention_layers|num_dit_layers)$"
)
_MAIN_COUNTS = (
    "num_hidden_layers",
    "num_layers",
    "n_layers",
    "n_layer",
    "depth",
    "layers",
    "encoder_layers",
    "decoder_layers",
)
_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")
"""Attributes that some configurations compute rather than keep."""
STAGES = (
    "depths",
    "num_block_repeats",
    "blocks_per_stage",
    "embed_dims",
    "block_sizes",
    "stage_num_blocks",
    "stage_blocks",
)
_DEPTHS = ("depths", "depth", "num_block_repeats", "blocks_per_stage", "stage_num_blocks", "block_sizes")
_STAGE_COUNT = re.compile(r"^num_(hidden_)?layers$|^num_encoder_blocks$|^num_stages$")
"""Fields that say how deep each stage is, and the counts of stages that look like counts of layers."""
_INDEX_LIST = re.compile(r"(index|indices|indexes|idx|idxs|_layers|hook_ids|_blocks)$")


def chosen_layers(config: PretrainedConfig, values: Mapping[str, Any]) -> tuple[tuple[int, ...], int]:
    """Which layers of the original the tiny form keeps, and how many there were: 0 where they come in stages.

    They are the shortest prefix that holds every kind of layer, at least two. Where late layers take the keys and
    values of earlier ones, each kind comes twice, so that one gives and one takes.
    """
    if any(isinstance(values.get(name), (list, tuple)) for name in STAGES):
        return tuple(range(LAYERS)), 0
    computed = {n: getattr(config, n) for n in _KINDS if isinstance(getattr(config, n, None), (list, tuple))}
    values = {**computed, **values}
    old = next((values[n] for n in _MAIN_COUNTS if type(values.get(n)) is int and values[n] > 0), 0)
    types = values.get("layer_types")
    if values.get("num_kv_shared_layers") and isinstance(types, (list, tuple)) and len(types) == old:
        firsts = tuple(types.index(kind) for kind in dict.fromkeys(types))
        return firsts * 2, old
    count = LAYERS
    for name, value in values.items():
        if not isinstance(value, (list, tuple)) or not value:
            continue
        if len(value) == old and _names_kinds(value):
            count = max(count, _prefix_with_all(value))
        elif name in ("out_indices", "_out_indices", "backbone_out_indices") and _is_index_list(value, old):
            count = max(count, len(value))
    return tuple(range(min(count, old) if old else count)), old


def _names_kinds(value: Any) -> bool:
    plain = all(isinstance(item, (str, bool, int)) for item in value)
    return plain and (isinstance(value[0], str) or len(set(value)) <= 3)


def _prefix_with_all(kinds: Any) -> int:
    wanted = set(kinds)
    return next(n for n in range(1, len(kinds) + 1) if set(kinds[:n]) == wanted)


def _is_index_list(value: Any, old_layers: int) -> bool:
    return all(type(item) is int for item in value) and old_layers > 0 and max(value) <= old_layers


def _indices(name: str, value: Any, context: Context) -> Any:
    """Indices of layers that still exist: the last for a list that marks some layers as special, so that one
    special and one plain layer stay; else as many as there is room for. Some count from 0, some from 1, some
    from the end.
    """
    if min(value) < 0:
        return type(value)(max(min(i, context.layers - 1), -context.layers) for i in value)
    first = int(max(value) >= context.old_layers)
    room = range(first, first + context.layers)
    if all(i in room for i in value):
        return value
    return type(value)(room[-1:] if _MARKS.search(name) else room[-len(value) :])


_MARKS = re.compile(r"att|block_ind|moe|cross|window|rope")


# --- numbers ----------------------------------------------------------------------------------------------

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
    r"^(sliding_window|sliding_window_size|attention_chunk_size|local_attention|keep_window_size|attention_window)$"
)
_TOKEN = re.compile(r"(token_ids?|_token_index|_index|_token|_tokens_ids|_id|_eos_id|_bos_id|_pad_id|token_indices)$")
_MELS = re.compile(r"^(num_mel_bins|n_mels|num_mels|feature_size|n_mel_bins|input_feat_size|mel_dim)$")
_IMAGE = re.compile(r"^((input_|pretrain_)?image_size|img_size|resolution|crop_size|input_size)$")
_LATENTS = re.compile(r"^(num_query_tokens|resampler_n_latents|resampler_num_latents|num_latents|latent_query_num)$")
_IMAGE_TOKENS = re.compile(r"^(mm_tokens_per_image|num_image_tokens|image_seq_length|vision_soft_tokens_per_image)$")
_NOT_TOKEN = re.compile(r"(ignore_index|active_idx|lang_id|default_prompt_id|patch_position)")


def changed_value(name: str, value: Any, context: Context) -> Any:
    """`value` as the tiny form has it; as it was where no rule knows its name."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _changed_dict(name, value, context)
    if isinstance(value, (list, tuple)):
        return _changed_list(name, value, context)
    rule = _rule(name, context.values) if isinstance(value, int) else None
    return rule(value, context) if rule else value


def is_ruled(name: str, value: Any) -> bool:
    """Whether a derived value has to be said again, because a rule changes it and nothing else would."""
    if isinstance(value, (list, tuple)):
        return bool(value) and ((isinstance(value[0], str) and "type" in name) or name in _LISTS_TO_SAY)
    return name == "rope_parameters" and isinstance(value, dict)


# A class derives these from nothing but its own defaults, not from the number of layers.
_LISTS_TO_SAY = ("hidden_sizes", "depths", "global_attn_indexes", "no_rope_layers", "moe_layers", "intermediate_size")


def _rule(name: str, values: Mapping[str, Any]) -> Callable[[int, Context], int] | None:
    staged = any(isinstance(values.get(n), (list, tuple)) for n in STAGES)
    if staged and _STAGE_COUNT.search(name):
        return None
    for pattern, but, rule in _RULES:
        if pattern.search(name) and not (but and but.search(name)):
            return rule
    return None


def _at_most(limit: int, last_step: int = STEPS) -> Callable[[int, Context], int]:
    return lambda value, context: min(value, limit) if value >= 0 and context.step <= last_step else value


def _token(value: int, context: Context) -> int:
    return context.tokens.get(value, value)


def _width(value: int, context: Context) -> int:
    if context.step <= 1:
        return min(value, WIDTH)
    return max(min(value, WIDTH), value // 16 // 8 * 8) if context.step == 2 else value


def _feature_layer(value: int, context: Context) -> int:
    return max(min(value, LAYERS - 1), -LAYERS)


def _first_width(value: int, context: Context) -> int:
    """The width of the first stage, where the code doubles it from stage to stage."""
    doubles = "depths" in context.values and "hidden_sizes" not in context.values
    return min(value, WIDTH // 4) if doubles and context.step <= 1 else _width(value, context)


def _swin_window(value: int, context: Context) -> int:
    return min(value, 2) if context.step == 0 and "depths" in context.values else value


def _heads(value: int, context: Context) -> int:
    if context.step > 2 or value <= 0:
        return value
    return 1 << (min(value, HEADS).bit_length() - 1)


def _kv_heads(value: int, context: Context) -> int:
    heads = next((context.values[n] for n in ("num_attention_heads", "n_heads", "n_head") if n in context.values), 0)
    if context.step > 2:
        return value
    return min(value, HEADS if value == heads else HEADS // 2)


def _layers(value: int, context: Context) -> int:
    return min(value, context.layers) if context.old_layers else min(value, LAYERS)


def _groups_chosen(value: int, context: Context) -> int:
    return 1 if value > 1 else value


def _image(value: int, context: Context) -> int:
    if context.step >= 1:
        return min(value, 224)
    if any(isinstance(context.values.get(n), (list, tuple)) for n in STAGES):
        return min(value, 64)
    patch = context.values.get("patch_size")
    patch = patch[0] if isinstance(patch, (list, tuple)) else patch
    return min(value, max(GRID * min(patch, PATCH), 16) if isinstance(patch, int) else 64)


def _patch(value: int, context: Context) -> int:
    return min(value, PATCH) if context.step == 0 else value


_RULES: tuple[tuple[re.Pattern[str], re.Pattern[str] | None, Callable[[int, Context], int]], ...] = (
    (_VOCABULARY, _NOT_VOCABULARY, _at_most(VOCABULARY)),
    (_TOKEN, _NOT_TOKEN, _token),
    (_LAYER_COUNT, re.compile(r"adapter|postnet|lstm|extract|predict"), _layers),
    (_SOURCE_POSITIONS, None, _at_most(32)),
    (_POSITIONS, re.compile(r"^(left|right)_"), _at_most(POSITIONS)),
    (_WINDOW, None, _at_most(8)),
    (_EXPERTS, re.compile(r"shared"), _at_most(4)),
    (_TOP_K, None, _at_most(2)),
    (re.compile(r"^(n_group|num_expert_group)$"), None, _at_most(2)),
    (re.compile(r"^topk_group$"), None, _groups_chosen),
    (re.compile(r"^rotary_dim$"), None, _at_most(HEAD_DIM, 2)),
    (_KV_HEADS, None, _kv_heads),
    (_HEAD_DIM, None, _at_most(HEAD_DIM, 2)),
    (_HEADS, None, _heads),
    (_MELS, None, _at_most(MELS, 1)),
    (_IMAGE, None, _image),
    (re.compile(r"^patch_size$"), None, _patch),
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
    (re.compile(r"^(num_frames|max_temporal_embeddings)$"), None, _at_most(4, 0)),
    (re.compile(r"^(train_num_points|num_denoising)$"), None, _at_most(16)),
    (re.compile(r"^(index_topk|index_topk_blocks|num_codevectors_per_group|num_negatives)$"), None, _at_most(8)),
    (re.compile(r"^first_k_dense_replace$"), None, lambda value, context: min(value, 1)),
    (re.compile(r"^num_kv_shared_layers$"), None, lambda value, context: min(value, context.layers // 2)),
    (re.compile(r"(^|_)feature_layers?$"), None, _feature_layer),
    (re.compile(r"^query_pre_attn_scalar$"), None, _at_most(HEAD_DIM, 2)),
    (re.compile(r"^window_size$"), None, _swin_window),
    (re.compile(r"^(embed_dim|patch_embeds_hidden_size|embedding_size)$"), None, _first_width),
    (_WIDTH, _NOT_WIDTH, _width),
)  # fmt: skip


# --- lists and dictionaries -------------------------------------------------------------------------------


def _changed_list(name: str, value: Any, context: Context) -> Any:
    if not value:
        return value
    if context.old_layers and len(value) == context.old_layers and not name.startswith("depth"):
        return type(value)(changed_value(name, item, context) for item in (value[i] for i in context.picks))
    if name.startswith("vision_feature_layer"):
        return type(value)(_feature_layer(item, context) for item in value)
    if _INDEX_LIST.search(name) and _is_index_list(value, context.old_layers):
        return _indices(name, value, context)
    if name in _DEPTHS:
        return type(value)(min(item, LAYERS) if isinstance(item, int) else item for item in value)
    if _rule(name, context.values) in (_width, _first_width) and context.step <= 1:
        return type(value)(_capped(item, WIDTH) for item in value)
    return type(value)(_changed_item(name, item, context) for item in value)


def _capped(item: Any, limit: int) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_capped(inner, limit) for inner in item)
    return min(item, limit) if type(item) is int else item


def _changed_item(name: str, item: Any, context: Context) -> Any:
    if isinstance(item, (list, tuple)):
        return type(item)(_changed_item(name, inner, context) for inner in item)
    return changed_value(name, item, context)


def _changed_dict(name: str, value: dict[Any, Any], context: Context) -> dict[Any, Any]:
    if name in ("rope_parameters", "rope_scaling"):
        return _rope(value, context)
    if name == "per_layer_config":
        layers = {int(k): (v, replace(context, values={**context.values, **v})) for k, v in value.items()}
        by_layer = {k: _changed_dict("", v, own) for k, (v, own) in layers.items()}
        return {new: by_layer[old] for new, old in enumerate(context.picks) if old in by_layer}
    return {k: changed_value(k, v, context) if isinstance(k, str) else v for k, v in value.items()}


def assumed_rope(config: PretrainedConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters that the model takes for granted: sections for time, height and width."""
    known = getattr(config, "ignore_keys_at_rope_validation", None) or ()
    rope = values.get("rope_parameters")
    if "mrope_section" in known and isinstance(rope, dict) and "mrope_section" not in rope:
        return {"mrope_section": [16, 24, 24]}
    return {}


def _rope(value: dict[str, Any], context: Context) -> dict[str, Any]:
    """Rotary parameters; sections and factors per frequency follow the number of frequencies."""
    pairs = _rotary_pairs(value, context.values) if context.step <= 2 else 0
    new: dict[str, Any] = {}
    nested = any(isinstance(item, dict) for item in value.values())
    for key, item in {**({} if nested or not value else context.rope), **value}.items():
        if isinstance(item, dict):
            new[key] = _rope(item, context)
        elif pairs and key in ("short_factor", "long_factor"):
            new[key] = (list(item) * pairs)[:pairs]
        elif pairs and key == "mrope_section" and item:
            new[key] = _sections(list(item), pairs)
        else:
            new[key] = item
    return new


def _rotary_pairs(rope: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    head = values.get("head_dim")
    if not isinstance(head, int):
        width, heads = values.get("hidden_size"), values.get("num_attention_heads")
        if not isinstance(width, int) or not isinstance(heads, int):
            return 0
        head = min(width, WIDTH) // min(heads, HEADS)
    share = rope.get("partial_rotary_factor", values.get("partial_rotary_factor")) or 1.0
    return int(min(head, HEAD_DIM) * share) // 2


def _sections(sections: list[int], pairs: int) -> list[int]:
    if sum(sections) == pairs:
        return sections
    total = sum(sections)
    new = [max(1, section * pairs // total) for section in sections]
    new[-1] += pairs - sum(new)
    return new


def names_token(name: str) -> bool:
    """Whether a field of this name holds ids of special tokens."""
    return bool(_TOKEN.search(name)) and not _NOT_TOKEN.search(name) and not _VOCABULARY.search(name)
