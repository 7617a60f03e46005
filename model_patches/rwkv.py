"""RWKV: `state` is the recurrent state, a list of tensors that the block returns updated (all releases)."""

PAST_STATE = {"RwkvBlock.state"}
