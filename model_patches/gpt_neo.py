"""GPT-Neo: kinds of attention by layer, and a window (4.52 to 5.24.0)."""

TINY = {"gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8}}
