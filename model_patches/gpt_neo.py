"""GPT-Neo: its layers alternate between global attention and a window (transformers 4.52 to 5.24.0)."""

TINY = {"gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8}}
