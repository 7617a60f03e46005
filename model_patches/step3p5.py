"""Step 3.5 and 3.7: windows shorter than the tiny text (transformers 5.23.0 to 5.24.0)."""

TINY = {"step3p5": {"sliding_window": 8}}
