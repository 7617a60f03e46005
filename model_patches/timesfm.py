"""TimesFM: a context without padding, of the highest frequency (transformers 4.52 to 5.24.0)."""

TINY = {"timesfm2_5": {"context_length": 128}}
INPUTS = {
    "timesfm": {"past_values": "floats(batch, context_length)"},
    "TimesFmModel": {
        "past_values": "floats(batch, context_length)",
        "past_values_padding": "zeros(batch, context_length)",
        "freq": "zeros(batch, 1)",
    },
}
