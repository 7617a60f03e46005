"""Muse Glimmer, and an assistant that drafts from the states of several layers (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "muse_glimmer": {"out_hidden_size": 256},  # the merged width of four patches
    "muse_glimmer_assistant": {"layer_types": ["full_attention"] * 2},  # windows need its cache
}
INPUTS = {
    "muse_glimmer_assistant": {
        "noise_embeds": "floats(batch, 8, hidden_size)",
        "context_hidden_states": "floats(batch, length, target_layer_ids * hidden_size)",
    }
}
