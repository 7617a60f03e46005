"""Aria: the projector has a table of how many queries it makes of how many patches (transformers 4.52 to 5.24.0)."""

TINY = {"aria": {"projector_patch_to_query_dict": {16: 4}}}
