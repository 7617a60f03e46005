"""ImageGPT: up to 4.57 its model adds the length of a cache to a number even if there is no cache.

With `use_cache=False`, and so with checkpointing, the forward raises TypeError (measured on 4.57.6).
"""

NEEDS_CACHE = {"ImageGPTModel"}
