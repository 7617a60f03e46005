"""pi0: its action expert attends to the cache that the vision-language model fills, in training, too.

Without that cache the forward raises AttributeError (measured on 5.23.0, with transformers' own checkpointing).
"""

READS_CACHES = {"PI0Model"}
TINY = {"pi0": {"chunk_size": 8}}
INPUTS = {
    "pi0": {  # one camera image, and the state and the actions of a robot
        "pixel_values": "floats(batch, 1, channels, height, width)",
        "pixel_attention_mask": "trues(batch, 1)",
        "state": "floats(batch, max_state_dim)",
        "actions": "floats(batch, chunk_size, max_action_dim)",
        "action_embeds": "floats(batch, chunk_size, dit_config.hidden_size)",
    }
}
