"""A transformers checkout in, reviewable patch series with their evidence out. Nothing is pushed or opened."""
