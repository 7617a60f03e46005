"""FSMT: in training, the model makes its decoder's masks only with `use_cache=False`.

With `use_cache=True`, its default, a decoder of transformers 5.23.0 sees later tokens.
"""

NEEDS_CACHE = {"FSMTModel"}
LEFT_OUT = {"PretrainedFSMTModel": "a base of other classes, without a forward"}
