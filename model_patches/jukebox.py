"""Jukebox: parts that are trained one by one, in a way of their own (transformers 4.52 to 4.57.6)."""

LEFT_OUT = {"JukeboxModel": "a model without a forward, for generation alone"}
