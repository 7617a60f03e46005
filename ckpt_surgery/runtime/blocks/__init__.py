"""Which modules of a model are blocks, which of them are chosen, and what their library keeps on them."""
