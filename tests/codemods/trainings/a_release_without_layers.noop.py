# trains: 2 | 2
# CKPT002 info | if self.gradient_checkpointing
# prelude: trained

class FooModel:
    def forward(self, hidden_states):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = checkpoint(layer, hidden_states, use_reentrant=False)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
# file: setup.py
from setuptools import setup

setup(name="foo", install_requires=["transformers==4.48.2"])
