# CKPT002 unsafe | if self.gradient_checkpointing:  # while | segment checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # in a comprehension | branches checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # reduced | reduced checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # by another function | run checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # annotated | named checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # captured | made(layer) checkpoints several modules as one
# CKPT002 unsafe | if self.gradient_checkpointing:  # by keyword | both(layer, norm=self.norm) checkpoints several
# CKPT002 unsafe | if self.gradient_checkpointing:  # elsewhere | pair(layer, self.norm) checkpoints several modules
# prelude: gcl

from functools import reduce


def pair(module, norm):
    return lambda *inputs: norm(module(*inputs))


class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        def both(module, norm):
            return lambda *inputs: norm(module(*inputs))

        def segment(states, index):
            end = index + 2
            while index < end:
                states = self.layers[index](states)
                index += 1
            return states

        def branches(states):
            return sum(layer(states) for layer in self.layers)

        def reduced(states):
            return reduce(lambda given, layer: layer(given), self.layers, states)

        if self.gradient_checkpointing:  # while
            hidden_states = self._gradient_checkpointing_func(segment, hidden_states, 0)
        else:
            hidden_states = segment(hidden_states, 0)
        if self.gradient_checkpointing:  # in a comprehension
            hidden_states = self._gradient_checkpointing_func(branches, hidden_states)
        else:
            hidden_states = branches(hidden_states)
        if self.gradient_checkpointing:  # reduced
            hidden_states = self._gradient_checkpointing_func(reduced, hidden_states)
        else:
            hidden_states = reduced(hidden_states)
        for layer in self.layers:
            def inner(states, layer=layer):
                return layer(states)

            def run(states, inner=inner):
                return self.norm(inner(states))

            def named(states, layer=layer):
                block: nn.Module = layer
                norm: nn.Module = self.norm
                return norm(block(states))

            def made(module, norm=self.norm):
                def custom_forward(*inputs):
                    return norm(module(*inputs))

                return custom_forward

            if self.gradient_checkpointing:  # by another function
                hidden_states = self._gradient_checkpointing_func(run, hidden_states)
            else:
                hidden_states = run(hidden_states)
            if self.gradient_checkpointing:  # annotated
                hidden_states = self._gradient_checkpointing_func(named, hidden_states)
            else:
                hidden_states = named(hidden_states)
            if self.gradient_checkpointing:  # captured
                hidden_states = self._gradient_checkpointing_func(made(layer), hidden_states)
            else:
                hidden_states = self.norm(layer(hidden_states))
            if self.gradient_checkpointing:  # by keyword
                hidden_states = self._gradient_checkpointing_func(both(layer, norm=self.norm), hidden_states)
            else:
                hidden_states = self.norm(layer(hidden_states))
            if self.gradient_checkpointing:  # elsewhere
                hidden_states = self._gradient_checkpointing_func(pair(layer, self.norm), hidden_states)
            else:
                hidden_states = self.norm(layer(hidden_states))
        return hidden_states
