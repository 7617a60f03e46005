# CKPT007 unsafe | shared_kv_states
# CKPT008 unsafe | shared_kv_states
# file: models/gemma3n/modeling_gemma3n.py
# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, shared_kv_states=None):
        return hidden_states

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None, encoder_hidden_states=None, **kwargs):
        for layer in self.layers:
            hidden_states = layer(hidden_states, shared_kv_states=shared_kv_states)
        return hidden_states
