"""GPTBigCode: the block is a plain module up to 4.57, with `encoder_hidden_states` after `layer_past`.

transformers 4.57.6 sets the flag, calls the block directly and never checkpoints: nothing is recomputed.
Upstream made the block a layer for 5.0 (transformers #41818) with `encoder_hidden_states` second in the
signature, so that the cache can be a keyword.
"""

BLOCKS = {"GPTBigCodeBlock"}
