"""ShieldGemma 2: tokens for yes and no, which its configuration does not declare (transformers 4.52 to 5.24.0)."""

TINY = {"shieldgemma2": {"+yes_token_index": 10, "+no_token_index": 11}}
