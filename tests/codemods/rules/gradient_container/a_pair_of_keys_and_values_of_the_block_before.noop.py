# CKPT007 unsafe | shared=previous | `previous`
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, past_key_values=None, shared: Optional[Tuple[torch.Tensor]] = None):
        return hidden_states, past_key_values, shared

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        previous = None
        for index, layer in enumerate(self.layers):
            outputs = layer(hidden_states, past_key_values=past_key_values, shared=previous)
            hidden_states = outputs[0]
            shared = outputs[-1]
            if index % 2 == 0:
                previous = shared
        return hidden_states
