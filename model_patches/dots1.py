"""dots.llm1: sizes that its configuration leaves to checkpoints (transformers 4.57.6 to 5.24.0)."""

TINY = {"dots1": {"n_routed_experts": 4, "n_shared_experts": 1}}
