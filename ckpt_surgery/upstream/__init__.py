"""Make reviewable patch series, with their evidence, from a transformers checkout. Nothing is pushed or opened."""
