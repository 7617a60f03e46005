"""FSMT: in training, the model makes its decoder's masks only where it is told to use no cache.

With `use_cache=True`, its default, a decoder of transformers 5.23.0 sees the tokens that come after.
"""

NEEDS_CACHE = {"FSMTModel"}
LEFT_OUT = {"PretrainedFSMTModel": "a base of other classes, without a forward"}
