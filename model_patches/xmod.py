"""X-MOD: an adapter for each language, here for a single one (4.52 to 5.24.0)."""

_ONE_LANGUAGE = {"languages": ["en_XX"], "default_language": "en_XX"}
TINY = {"xmod": _ONE_LANGUAGE}
