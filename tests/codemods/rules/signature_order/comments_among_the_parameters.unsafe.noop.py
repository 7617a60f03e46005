# CKPT005 unsafe | def forward | `encoder_hidden_states` behind past state
# CKPT004 unsafe | past_key_values
# prelude: gcl
class FooLayer:
    def forward(
        self,  # the block
        hidden_states,
        layer_past: tuple | None = None,  # the cache
        # of the encoder,
        # if there is one
        encoder_hidden_states: dict | None = None,
        # and the rest
        **kwargs,
    ):
        return hidden_states
class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values, encoder_hidden_states)
        return hidden_states
