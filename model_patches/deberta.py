"""DeBERTa: relative attention, off by default and on in checkpoints (transformers 4.52 to 5.24.0)."""

SHOWN = {
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"},
}
