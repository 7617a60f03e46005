# trains: 1 | 1
# CKPT001 unsafe | class FooLayer | reads more outputs of FooLayer where `use_cache` is True
# prelude: trained

class FooLayer:
    def forward(self, hidden_states, encoder_hidden_states=None, use_cache=False):
        outputs = (hidden_states + self.self_attn(hidden_states),)
        return outputs + (hidden_states.detach(),) if use_cache else outputs


class FooModel:
    def forward(self, hidden_states, use_cache=True):
        kept = ()
        for layer in self.layers:
            outputs = layer(hidden_states, use_cache=use_cache)
            hidden_states = outputs[0]
            if use_cache:
                kept += (outputs[1],)
        return hidden_states
