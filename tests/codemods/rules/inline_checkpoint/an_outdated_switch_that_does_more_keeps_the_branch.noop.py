# CKPT002 unsafe | if | FooModel._set_gradient_checkpointing reaches no layer, and does more
# prelude: plain

class FooModel:
    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, FooModel):
            module.gradient_checkpointing = value
            module.tower.set_grad_checkpointing(value)

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = torch.utils.checkpoint.checkpoint(layer, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
