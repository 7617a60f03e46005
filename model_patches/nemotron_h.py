"""Nemotron-H, and the model for images and audio built on it (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "chunk_size": 16},
    "nemotron_h_omni": {"image_token_id": 120},
}
INPUTS = {
    "nemotron_h_omni": {
        "pixel_values": "floats(16 * batch, channels * patch_size * patch_size)",
        "image_grid_hw": "rows([4, 4])",
    }
}
