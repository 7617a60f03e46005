"""xLSTM: the block takes `x` and `state`, and has two definitions.

transformers 4.57.6 checkpoints by an inline branch and passes `state` by position; the block is a plain
module, either defined in the file or imported from the `xlstm` package under an availability guard.
Upstream made both definitions layers for 5.0 (transformers #41818); up to 5.23.0 the recurrent state still
goes by position (and is a keyword that the layer does not clear).
"""

GRADIENT = {"xLSTMBlock.x"}
PAST_STATE = {"xLSTMBlock.state"}
BLOCKS = {"xLSTMBlock"}
TINY = {"xlstm": {"hidden_size": 128}}  # the cache rounds its widths up to multiples of 64
