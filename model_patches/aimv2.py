"""AIMv2: its text part checkpoints on its own, but is not exported (transformers 4.57.6 to 5.24.0)."""

PARTS = {"aimv2": {"Aimv2TextModel": "Aimv2TextConfig"}}
