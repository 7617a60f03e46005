# CKPT007 unsafe | layer(hidden_states, {
# CKPT007 unsafe | layer(hidden_states, (hidden_states | inside a container
# CKPT007 unsafe | layer(hidden_states, encoder_hidden_states=[
# prelude: gcl


class FooLayer:
    def forward(self, hidden_states, features=None, position_embeddings=None, encoder_hidden_states=None):
        return hidden_states


class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, {"a": hidden_states})
            hidden_states = layer(hidden_states, (hidden_states, attention_mask))
            hidden_states = layer(hidden_states, encoder_hidden_states=[attention_mask])  # ckpt: ignore[CKPT003] a list
            hidden_states = layer(hidden_states, position_embeddings=(attention_mask, attention_mask))
        return hidden_states
