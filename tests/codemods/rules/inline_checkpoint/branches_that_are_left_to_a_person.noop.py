# CKPT002 unsafe | attention_mask)  # alone | no else branch
# CKPT002 unsafe | = self._gradient_checkpointing_func( | it is a conditional expression
# CKPT002 unsafe | :  # it does more | the else branch lacks
# CKPT002 unsafe | attention_mask)  # turned round
# CKPT002 unsafe | :  # an elif in place of the else
# CKPT002 unsafe | elif self.gradient_checkpointing | it is an elif
# CKPT002 unsafe | self.training and attention_mask is None: | also asks for attention_mask is None
# CKPT002 unsafe | :  # no else | no else
# CKPT002 unsafe | :  # another call | does not call layer
# prelude: gcl


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(4)])
        self.other = nn.Identity()

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)  # alone
            hidden_states = self._gradient_checkpointing_func(
                layer.__call__, hidden_states, attention_mask
            ) if self.gradient_checkpointing and self.training else layer(hidden_states, attention_mask)
            if self.gradient_checkpointing and self.training:  # it does more
                hidden_states = hidden_states * 2
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
            if not (self.gradient_checkpointing and self.training):
                hidden_states = layer(hidden_states, attention_mask)
            else:
                hidden_states = self._gradient_checkpointing_func(layer, hidden_states, attention_mask)  # turned round
            if self.gradient_checkpointing and self.training:  # an elif in place of the else
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            elif attention_mask is None:
                hidden_states = layer(hidden_states, attention_mask)
            if attention_mask is None:
                hidden_states = hidden_states + 1
            elif self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
            if self.gradient_checkpointing and self.training and attention_mask is None:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
            if self.gradient_checkpointing and self.training:  # no else
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            if self.gradient_checkpointing and self.training:  # another call
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = self.other(hidden_states)
            if self.gradient_checkpointing and self.training:
                attention_mask = None
            # ckpt: ignore[CKPT002] kept on purpose
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
