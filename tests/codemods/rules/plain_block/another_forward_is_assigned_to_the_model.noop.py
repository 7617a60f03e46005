# CKPT001 unknown | class FooLayer | another forward is assigned to FooModel
# prelude: plain

# file: models/foo/faster.py
from .modeling_foo import FooModel


def new_forward(self, hidden_states):
    return hidden_states


FooModel.forward = new_forward
