"""Kyutai Speech-To-Text: a column of tokens for each codebook and one for text (transformers 4.57.6 to 5.24.0)."""

_IDS = "tokens(batch, length, num_codebooks + 1, below=16)"  # ids that text and codebooks have
INPUTS = {"kyutai_speech_to_text": {"input_ids": _IDS}}
