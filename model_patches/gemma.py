"""Gemma3n and Gemma4: blocks share keys and values through the dict `shared_kv_states`.

The blocks write into the dict they are given. With `use_reentrant=True` every gradient is there, but its
value is wrong (measured on 5.23.0): the recompute reads and writes the same dict.

Up to 5.5.4 the upper layers of Gemma3n take the keys of lower ones from the cache, and compute their own without
one: 5.0.0, 5.3.0 and 5.5.4 then train another model (the loss of a tiny one goes from 4.63784 to 4.63844, and 124 of
its 145 gradients differ). 4.57.6 makes no cache in training.
"""

FAMILIES = ("gemma3n", "gemma4", "gemma4_unified", "mistral_large4")
CONTAINERS = {"shared_kv_states"}
CACHE_DECIDES = {"Gemma3nTextModel": "5.6.2"}
TINY = {
    "gemma3n": {"audio_soft_tokens_per_image": 4, "vision_soft_tokens_per_image": 4},
    "gemma3n_audio": {"vocab_offset": 112, "vocab_size": 16},
    "gemma3n_vision": {
        "model_args": {"channel_multiplier": 0.01, "msfa_output_resolution": 2},
        "vocab_offset": 96,
        "vocab_size": 16,
    },
}
KEPT = {"gemma3n_vision": ("hidden_size",)}  # fixed by timm
SHOWN = {"gemma4_text": {"num_kv_shared_layers": 2}}
_PATCHES = "shares(batch, 36, channels * patch_size * patch_size)"
INPUTS = {
    "gemma3n": {"input_features_mask": "bools()"},  # it negates the mask
    "Gemma3nAudioEncoder": {"audio_mel": "floats(batch, 64, mels)", "audio_mel_mask": "falses(batch, 64)"},
    "gemma4": {"pixel_values": _PATCHES, "image_position_ids": "places(6)"},
    "gemma4_vision": {"pixel_values": _PATCHES, "pixel_position_ids": "places(6)"},
    "mistral_large4": {"image_sizes": "rows([height, width])"},
}
