# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, bias=None, scale=None, width=None):
        return hidden_states, bias, scale, width

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        width, weights = None, []
        for index, layer in enumerate(self.layers):
            bias = self.biases[index]
            scale = self.scale(hidden_states)
            hidden_states, bias, scale, attention = layer(hidden_states, bias=bias, scale=scale, width=width)
            weights.append(attention)
            width = hidden_states.shape[-1]
        return hidden_states, weights
