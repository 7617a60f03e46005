"""Fuyu: trained on text alone, without its patches (transformers 4.52 to 5.24.0)."""

INPUTS = {"fuyu": {"pixel_values": None}}
