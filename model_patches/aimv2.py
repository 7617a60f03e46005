"""AIMv2: its text part checkpoints on its own, and nothing exports it (4.57.6 to 5.24.0)."""

PARTS = {"aimv2": {"Aimv2TextModel": "Aimv2TextConfig"}}
