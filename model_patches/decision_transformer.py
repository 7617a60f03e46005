"""Decision Transformer: it reads states, actions and rewards (transformers 4.52 to 5.24.0)."""

INPUTS = {
    "decision_transformer": {
        "states": "floats(batch, 6, state_dim)",
        "actions": "floats(batch, 6, act_dim)",
        "rewards": "floats(batch, 6, 1)",
        "returns_to_go": "floats(batch, 6, 1)",
        "timesteps": "counted(batch, 6)",
        "attention_mask": "ones(batch, 6)",
    },
    "DecisionTransformerGPT2Model": {"input_ids": "zeros(batch, length)"},  # its vocabulary has one token
}
