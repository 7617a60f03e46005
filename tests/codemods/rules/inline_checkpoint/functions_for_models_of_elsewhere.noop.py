# CKPT002 info | if index < self.recomputed: | layer.__call__ is checkpointed by a branch on `index < self.recomputed`; left as it is: the functions of FooFunctions are put into models that are not among the files
from transformers import FooModel


class FooFunctions:
    @staticmethod
    def forward(self: FooModel, hidden_states, attention_mask=None):
        for index, layer in enumerate(self.layers):
            if index < self.recomputed:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
