"""What names mean across transformers: past state, gradient arguments, block and non-block classes.

Facts only: `codemods/facts/argument_names.py` judges parameters by them. What a single family means by a name is in
its own file.
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
        "protein_kv_states",
        "queries",
        "query_point_embedding",
        "query_pos",
        "query_position",
        "query_position_embeddings",
        "query_sine_embed",
        "query_states",
        "rel_embeddings",
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

GRADIENT_ENDINGS = ("_hidden_states", "_hidden_state", "position_bias", "rel_pos_bias")
SWITCH_BEGINNINGS = ("output_", "return_", "use_")
"""Beginnings of the names of options."""
NO_TENSOR_ENDINGS = (
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
"""Endings of the names of masks, indices and sizes."""
TABLES = ("position", "pos_emb", "rotary", "alibi", "freqs", "cos", "sin", "length", "seqlens")
"""Parts of the names of positions, of position tables and of lengths."""
STATE_SOMEWHERE = ("state", "states", "memory", "inference_params")
STATE_ENDINGS = ("_state", "_cache")
"""Names of recurrent state in some models, and endings of such names; elsewhere they mean something else."""

MIXERS = re.compile(r"Attention|Attn|Mixer|Mamba|SSM|LSTM|Rwkv|RWKV|Recurrent|Hyena|DeltaNet|RGLRU|Fourier")
"""Classes that mix positions: attention, recurrence, a state space model."""
NO_BLOCKS = re.compile(
    r"(?:Attention|Attn|Head|Heads|Embeddings?|Expert|Experts|MLP|Norm|Predictor|Adapter|Merger"
    r"|FusionLayer|ReassembleLayer)$"
)
"""Classes that are parts of a block, or something else that models keep in lists."""
BESIDE_OTHERS = re.compile(r"(?:head|embedding|embed|expert|norm|predictor|adapter|quantizer)s?$", re.IGNORECASE)
"""Classes and attributes of modules in a list that do not take each other's output as input."""
