"""Gemma 4's assistant: it reads the states, keys and values of the model that it drafts for (5.23.0 to 5.24.0)."""

INPUTS = {
    "gemma4_unified_assistant": {
        "shared_kv_states": "keys_and_values()",
        "inputs_embeds": "floats(batch, length, 2 * backbone_hidden_size)",
        "position_ids": "counted(batch, length)",
        "input_ids": None,
        "attention_mask": None,
    }
}
