# prelude: gcl

class FooLayer:
    def forward(self, hidden_states, state=None, sizes: tuple[int, int] | None = None, done: bool = False, topk_indices=None):
        return hidden_states, state, sizes, done, topk_indices

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        state = sizes = done = indices = None
        for layer in self.layers:
            hidden_states, state, sizes, done, indices = layer(
                hidden_states, state=state, sizes=sizes, done=done, topk_indices=indices
            )
        return hidden_states
