"""BridgeTower: its contrastive head reads fields that are not declared, hence `+` (transformers 4.52 to 5.24.0)."""

TINY = {"bridgetower": {"+contrastive_hidden_size": 64, "+logit_scale_init_value": 2.6592}}
