"""MPT: `position_bias` is the fixed ALiBi table, not the learned bias of the T5 family."""

NOT_GRADIENT = {"position_bias"}
