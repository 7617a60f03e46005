"""The blocks of a model: found, chosen, and with what their library keeps on them."""
