"""DiffusionGemma: the encoder fills the cache that the decoder reads.

A checkpointing layer gets no cache, so an encoder that checkpoints would leave the decoder without its
prefix: the encoder's text layer stays plain (its docstring in transformers 5.23.0 says the same). The decoder's
layers set `_can_checkpoint_with_cache`: they read the cache and never write it.
"""

NOT_BLOCKS = {"DiffusionGemmaEncoderTextLayer"}
CONTAINERS = {"shared_kv_states"}
TINY = {"diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}}
INPUTS = {
    "diffusion_gemma": {
        "pixel_values": "shares(batch, 36, channels * patch_size * patch_size)",
        "image_position_ids": "places(6)",
    }
}
