"""BridgeTower: fields that its contrastive head reads and its configuration does not declare (4.52 to 5.24.0)."""

TINY = {"bridgetower": {"+contrastive_hidden_size": 64, "+logit_scale_init_value": 2.6592}}
