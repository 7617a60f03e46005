"""GPTSAN-japanese: its model reads a cache from every block's output, even if none was asked for.

With `use_cache=False` the forward raises IndexError (measured on 4.57.6, where the model is deprecated).
"""

NEEDS_CACHE = {"GPTSanJapaneseModel"}
