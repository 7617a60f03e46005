"""Zamba: every block gets the embedding output as well as the hidden states.

`original_hidden_states` carries gradient into the shared transformer of every hybrid layer;
`transformer_hidden_states` is what that transformer returned. transformers 4.57.6 checkpoints by an inline
branch over plain layers; upstream made them layers for 5.0 (transformers #41818), with
`original_hidden_states` positional. ZambaHybridLayer holds a ZambaMambaDecoderLayer: both are layers then,
and the inner one is computed three times (CKPT006).
"""

FAMILIES = ("zamba", "zamba2")
GRADIENT = {"original_hidden_states", "transformer_hidden_states"}
TINY = {
    "zamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_hidden_layers": 5,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid"],
    },
    "zamba2": {"chunk_size": 16},
}
SHOWN = {"zamba2": {"use_mem_rope": True}}  # 5.0.0 runs only with it
