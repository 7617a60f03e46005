"""X-MOD: an adapter for each language, here for a single one (transformers 4.52 to 5.24.0)."""

TINY = {"xmod": {"languages": ["en_XX"], "default_language": "en_XX"}}
