# prelude: gcl


class FooLayer:
    def forward(
        self,
        hidden_states,
        encoder_hidden_states=None,
        position_embeddings=None,
        image_hidden_states: torch.LongTensor | None = None,
        output_hidden_states=None,
    ):
        return hidden_states


class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoder_hidden_states=None)
            hidden_states = layer(hidden_states, image_hidden_states=attention_mask)
            hidden_states = layer(hidden_states, output_hidden_states=attention_mask)
            hidden_states = layer(hidden_states, position_embeddings=attention_mask)  # a family's own word
        return hidden_states
