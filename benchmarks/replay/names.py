"""What argument names mean to the replay's judge: its own list, kept apart from the codemods' vocabulary."""

from __future__ import annotations

PAST = frozenset(
    [
        "past_key_value",
        "past_key_values",
        "layer_past",
        "past_states",
        "past_buckets_states",
        "cache_params",
        "cache",
        "kv_cache",
        "padding_cache",
        "state",
        "mems",
        "shared_kv_states",
        "prev_states",
        "encoder_past_key_values",
    ]
)
GRADIENT = frozenset(
    [
        "hidden_states",
        "hidden_state",
        "hidden",
        "x",
        "input",
        "residual",
        "activations",
        "inputs_embeds",
        "hidden_states_in",
        "encoder_hidden_states",
        "vision_encoder_hidden_states",
        "text_encoder_hidden_states",
        "image_hidden_states",
        "original_hidden_states",
        "word_hidden_states",
        "entity_hidden_states",
        "global_hidden_states",
        "decoder_embeddings",
        "cross_attention_states",
        "vision_features",
        "task_features",
        "text_features",
        "queries",
        "keys",
        "query_states",
        "query_embeds",
        "position_bias",
        "encoder_decoder_position_bias",
        "relative_position_bias",
        "rel_embeddings",
        "rel_pos",
        "rel_2d_pos",
        "object_queries",
        "query_position_embeddings",
        "query_position",
        "query_sine_embed",
        "query_point_embedding",
        "protein_kv_states",
        "structure_kv_states",
        "msa_kv_states",
        "bbox_pos_emb",
        "layout_inputs",
        "per_layer_input",
        "self_attn_prompt",
        "cross_attn_prompt",
        "input_features",
        "mel_spec",
    ]
)
LEARNED = {"position_embeddings": "query", "reference_points": "reference_points_input"}
"""Names that carry gradient only where the expression says so.

Position embeddings where they are those of learned queries, reference points where a decoder scales its own
for the levels; elsewhere both are computed from shapes alone.
"""


def carries_gradient(parameter: str, expression: str) -> bool:
    """Whether an argument can carry gradient, by its parameter, or its expression where no signature names it."""
    name = _name(parameter, expression)
    return name in GRADIENT or (name in LEARNED and LEARNED[name] in expression)


def is_past(parameter: str, expression: str) -> bool:
    """Whether an argument is past state."""
    return _name(parameter, expression) in PAST


def _name(parameter: str, expression: str) -> str:
    return expression.rsplit(".", 1)[-1] if parameter.startswith("#") else parameter
