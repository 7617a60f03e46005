"""What names mean across transformers: past state, gradient arguments, block and non-block classes.

Facts only, no logic beyond looking a name up. What a single family means by a name is in that family's file.
"""

from __future__ import annotations

import re

PAST_STATE = frozenset(
    {
        "past_key_value",
        "past_key_values",
        "layer_past",
        "past_bucket_states",
        "past_states",
        "past_state",
        "cache_params",
        "cache",
        "kv_cache",
        "shared_kv_states",
        "padding_cache",
        "prev_states",
        "encoder_past_key_values",
        "past_buckets_states",
        "mems",
    }
)


GRADIENT = frozenset(
    {
        "activations",
        "atom_conditioning",
        "bbox_pos_emb",
        "block_states",
        "context_states",
        "cross_attention_states",
        "decoder_embeddings",
        "embedding_output",
        "encoder_decoder_position_bias",
        "encoder_states",
        "features",
        "hidden",
        "hidden_state",
        "hidden_states",
        "input_tensor",
        "inputs_embeds",
        "key_point_embedding",
        "keys",
        "layout_inputs",
        "msa_kv_states",
        "msa_states",
        "object_queries",
        "object_queries_position_embeddings",
        "pair_states",
        "prompt_feats",
        "per_layer_input",
        "position_bias",
        "protein_kv_states",
        "queries",
        "query_point_embedding",
        "query_pos",
        "query_position",
        "query_position_embeddings",
        "query_sine_embed",
        "query_states",
        "rel_embeddings",
        "relative_position_bias",
        "residual",
        "single_states",
        "spatial_position_embeddings",
        "structure_kv_states",
        "task_features",
        "text_features",
        "value_embeds",
        "vision_feats",
        "vision_features",
        "x",
    }
)
"""Parameters of block forwards that carry gradient in at least one model of each release from 4.52 on,
and in none carry only masks, positions or sizes."""

_GRADIENT_ENDINGS = ("_hidden_states", "_hidden_state")
_SWITCHES = ("output_", "return_", "use_")
_NO_TENSORS = (
    "mask",
    "_ids",
    "_idx",
    "_index",
    "_indices",
    "_positions",
    "config",
    "_dimensions",
    "_size",
    "_shape",
    "_shapes",
)
_TABLES = ("position", "pos_emb", "rotary", "alibi", "freqs", "cos", "sin", "length", "seqlens")
_PLAIN_TYPES = frozenset({"bool", "int", "float", "str"})
_TYPE_FORMS = frozenset({"Optional", "Union", "None", "typing", "list", "List", "tuple", "Tuple", "Sequence"})


def is_past_state(name: str) -> bool:
    """Whether a parameter of this name is a cache or recurrent state in every model that has one."""
    return name in PAST_STATE


def is_gradient(name: str, annotation: str = "") -> bool:
    """Whether a parameter of this name carries gradient.

    `position_embeddings` does not: a pair of rotary tables in most models, learned only in the families
    that say so. An annotation (its source text) without a tensor type decides against any name.
    """
    if is_switch(name, annotation):
        return False
    return name in GRADIENT or name.endswith(_GRADIENT_ENDINGS)


def is_switch(name: str, annotation: str = "") -> bool:
    """Whether a parameter is surely no gradient: an option, a mask, indices, a size, or of plain types."""
    types = set(_WORD.findall(annotation)) - _TYPE_FORMS
    if "LongTensor" in annotation or (types and types <= _PLAIN_TYPES):
        return True
    return name.startswith(_SWITCHES) or name.endswith(_NO_TENSORS)


def may_carry_gradient(name: str, annotation: str = "") -> bool:
    """Whether a parameter may carry gradient, for all its name tells: it is no option, mask, size or table."""
    return not is_switch(name, annotation) and not any(word in name for word in _TABLES)


def may_be_state(name: str) -> bool:
    """Whether a parameter of this name is recurrent state in some models, so that what it is given proves nothing."""
    return name in ("state", "states", "memory", "inference_params") or name.endswith(("_state", "_cache"))


def is_surely_no_state(name: str, annotation: str = "") -> bool:
    """Whether a parameter of this name is known for something else than a cache or recurrent state."""
    return is_gradient(name, annotation) or is_switch(name, annotation) or "position" in name or "embed" in name


def is_container(annotation: str) -> bool:
    """Whether an annotation (its source text) is that of a list, tuple or dict."""
    return _CONTAINER.search(annotation) is not None


_WORD = re.compile(r"[A-Za-z_]\w*")
_CONTAINER = re.compile(r"\b(?:[Ll]ist|[Tt]uple|[Dd]ict|Sequence|Iterable|Mapping)\b")
_MIXERS = re.compile(r"Attention|Attn|Mixer|Mamba|SSM|LSTM|Rwkv|RWKV|Recurrent|Hyena|DeltaNet|RGLRU|Fourier")
_NO_BLOCKS = re.compile(
    r"(?:Attention|Attn|Head|Heads|Embeddings?|Expert|Experts|MLP|Norm|Predictor|Adapter|Merger"
    r"|FusionLayer|ReassembleLayer)$"
)
_BESIDE = re.compile(r"(?:head|embedding|embed|expert|norm|predictor|adapter|quantizer)s?$", re.IGNORECASE)


def mixes_positions(class_name: str) -> bool:
    """Whether a class of this name mixes positions: attention, recurrence, a state space model."""
    return _MIXERS.search(class_name) is not None


def is_no_block(class_name: str) -> bool:
    """Whether a class of this name is a part of a block, or something else that is kept in lists."""
    return _NO_BLOCKS.search(class_name) is not None


def runs_beside_others(name: str) -> bool:
    """Whether modules of such a class, or in such an attribute, do not go on with each other's output."""
    return _BESIDE.search(name) is not None
