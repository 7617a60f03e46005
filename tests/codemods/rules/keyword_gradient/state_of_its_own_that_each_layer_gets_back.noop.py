# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, kept=None):
        return hidden_states, kept

class FooModel:
    def forward(self, hidden_states, attention_mask=None, kept=None):
        for index, layer in enumerate(self.layers):
            hidden_states, kept[index] = layer(hidden_states, kept=kept[index])
        return hidden_states
