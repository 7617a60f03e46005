# CKPT005 unsafe | def forward
# CKPT004 unsafe | layer(hidden_states, past
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            # ckpt: ignore[CKPT002] kept on purpose
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(
                    layer.__call__, hidden_states, past_key_values, encoder_hidden_states
                )
            else:
                hidden_states = layer(hidden_states, past_key_values, encoder_hidden_states)
        return hidden_states
