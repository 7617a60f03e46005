# CKPT002 unsafe | :  # a function | run checkpoints several modules as one
# CKPT002 unsafe | :  # by another function | outer checkpoints several modules as one
# CKPT002 unsafe | :  # made | both(layer, self.norm) checkpoints several modules as one
# CKPT002 unsafe | :  # captured | closed(layer) checkpoints several modules as one
# CKPT002 unsafe | :  # a loop | segment checkpoints several modules as one
# CKPT002 unsafe | :  # in a comprehension | branches checkpoints several modules as one
# CKPT002 unsafe | :  # reduced | reduced checkpoints several modules as one
# CKPT002 unsafe | :  # elsewhere | pair(self.layers[0], self.norm) checkpoints several
# prelude: gcl
from functools import reduce


def pair(module, norm):
    return lambda *inputs: norm(module(*inputs))


class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        def both(module, norm):
            def custom_forward(*inputs):
                return norm(module(*inputs))

            return custom_forward

        def segment(states):
            for layer in self.layers[1:]:
                states = layer(states, attention_mask)
            return states

        def branches(states):
            return sum(layer(states) for layer in self.layers)

        def reduced(states):
            return reduce(lambda given, layer: layer(given), self.layers, states)

        for layer in self.layers:

            def run(states, layer=layer):
                return self.norm(layer(states, attention_mask))

            def outer(states, run=run):
                return run(states)

            def closed(module, norm=self.norm):
                return lambda *inputs: norm(module(*inputs))

            if self.gradient_checkpointing:  # a function
                hidden_states = self._gradient_checkpointing_func(run, hidden_states)
            else:
                hidden_states = run(hidden_states)
            if self.gradient_checkpointing:  # by another function
                hidden_states = self._gradient_checkpointing_func(outer, hidden_states)
            else:
                hidden_states = outer(hidden_states)
            if self.gradient_checkpointing:  # made
                hidden_states = self._gradient_checkpointing_func(both(layer, self.norm), hidden_states)
            else:
                hidden_states = self.norm(layer(hidden_states))
            if self.gradient_checkpointing:  # captured
                hidden_states = self._gradient_checkpointing_func(closed(layer), hidden_states)
            else:
                hidden_states = self.norm(layer(hidden_states))
        if self.gradient_checkpointing:  # a loop
            hidden_states = self._gradient_checkpointing_func(segment, hidden_states)
        else:
            hidden_states = segment(hidden_states)
        if self.gradient_checkpointing:  # in a comprehension
            hidden_states = self._gradient_checkpointing_func(branches, hidden_states)
        else:
            hidden_states = branches(hidden_states)
        if self.gradient_checkpointing:  # reduced
            hidden_states = self._gradient_checkpointing_func(reduced, hidden_states)
        else:
            hidden_states = reduced(hidden_states)
        if self.gradient_checkpointing:  # elsewhere
            hidden_states = self._gradient_checkpointing_func(pair(self.layers[0], self.norm), hidden_states)
        else:
            hidden_states = self.norm(self.layers[0](hidden_states))
        return hidden_states
