"""Training on long sequences: blocks checkpointed with offload, MLPs tiled, the loss fused, by one call on a model."""
