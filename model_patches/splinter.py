"""Splinter: the position of the question that each text asks (transformers 4.52 to 5.24.0)."""

INPUTS = {"SplinterForPreTraining": {"question_positions": "ones(batch, 1)"}}
