"""Reformer: chunks, buckets and axial positions multiply to the length (transformers 4.52 to 5.24.0)."""

TINY = {
    "reformer": {
        "axial_pos_shape": [4, 4],
        "axial_pos_embds_dim": [32, 32],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    }
}
OPTIONS = {"ReformerModelWithLMHead": {"is_decoder": True}}
