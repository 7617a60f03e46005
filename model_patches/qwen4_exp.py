"""Qwen4 Experimental: the sizes of its indexer (transformers 5.23.0 to 5.24.0)."""

TINY = {
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    }
}
