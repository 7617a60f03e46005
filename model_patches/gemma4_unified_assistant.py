"""Gemma 4's assistant reads states, keys and values of the model it drafts for (transformers 5.23.0 to 5.24.0)."""

INPUTS = {
    "gemma4_unified_assistant": {
        "shared_kv_states": "keys_and_values()",
        "inputs_embeds": "floats(batch, length, 2 * backbone_hidden_size)",
        "position_ids": "counted(batch, length)",
        "input_ids": None,
        "attention_mask": None,
    }
}
