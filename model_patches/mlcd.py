"""MLCD: a learned class position is inside the `position_embeddings` pair.

With `use_reentrant=True` released models crash in the backward pass (transformers 4.53 to 5.23.0): a tensor that
requires gradient reaches the block inside a tuple.
"""

CONTAINERS = {"position_embeddings"}
