"""Chameleon: a map from image codes to tokens of the vocabulary (transformers 4.52 to 5.24.0)."""

_CODES = {f"IMGIMG{chr(65 + i)}Z": 100 + i for i in range(8)}
TINY = {"chameleon": {"vocabulary_map": {"<image>": 120, **_CODES}}, "chameleon_vqgan": {"num_embeddings": 8}}
LEFT_OUT = {"ChameleonVQVAE": "a codec without a forward, which other classes call by its parts"}
