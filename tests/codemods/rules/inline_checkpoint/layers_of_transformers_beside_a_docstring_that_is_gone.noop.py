# CKPT002 info | if self.gradient_checkpointing and self.training | the branch is right for releases with LLAMA_INPUTS_DOCSTRING
from transformers.models.llama.modeling_llama import LLAMA_INPUTS_DOCSTRING, LlamaModel


class FooModel(LlamaModel):
    def forward(self, hidden_states):
        for decoder_layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(decoder_layer.__call__, hidden_states)
            else:
                hidden_states = decoder_layer(hidden_states)
        return hidden_states
