"""Small models for tests: a block, a stack of it, a parent in another file."""

from __future__ import annotations

from tests.codemods.tools import FOO, files_of

_CACHED = """
class FooLayer:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        return self.self_attn(hidden_states)

class FooModel:
    def forward(self, hidden_states, attention_mask=None, past_key_values=None):
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states
"""
PLAIN = files_of(f"# prelude: plain\n{_CACHED}")[1][FOO]
"""One safe CKPT001, on the line of `class FooLayer`."""

TOY = PLAIN.replace("Foo", "Toy")
"""The same for the folder `models/toy`."""

LAYERED = files_of(f"# prelude: gcl\n{_CACHED}")[1][FOO]
"""PLAIN after its repair, without findings."""

HEAD = PLAIN[: PLAIN.index("class FooAttention")]
LAYER = PLAIN[PLAIN.index("class FooLayer") : PLAIN.index("class FooModel")]
MODEL = PLAIN[PLAIN.index("class FooModel") :]
GCL_IMPORT = "from ...modeling_layers import GradientCheckpointingLayer\n"
CALL = "layer(hidden_states, attention_mask)"
BY_KEYWORD = LAYERED.replace(CALL, "layer(hidden_states=hidden_states, attention_mask=attention_mask)")
"""One safe CKPT003."""

BY_POSITION = LAYERED.replace(CALL, "layer(hidden_states, attention_mask, past_key_values)")
"""One safe CKPT004."""

INLINE = PLAIN.replace(
    f"            hidden_states = {CALL}\n",
    """\
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, attention_mask)
            else:
                hidden_states = layer(hidden_states=hidden_states, attention_mask=attention_mask)
""",
)
"""One safe CKPT002 and, in its else branch, one safe CKPT003."""

CHILD = HEAD.replace(
    "PreTrainedModel\n", "PreTrainedModel\nfrom ..bar.modeling_bar import BarLayer\n"
) + MODEL.replace("FooLayer", "BarLayer")
PARENT = HEAD.replace("from ...modeling_utils import PreTrainedModel\n", "from ...activations import ACT2FN\n") + (
    LAYER.replace("Foo", "Bar").replace("hidden_states)", "nn.functional.relu(hidden_states))").rstrip() + "\n"
)
"""The block that CHILD imports, still plain."""
PARENT_LAYERED = PARENT.replace("ACT2FN\n", "ACT2FN\n" + GCL_IMPORT).replace(
    "class BarLayer(nn.Module)", "class BarLayer(GradientCheckpointingLayer)"
)
BAR = "models/bar/modeling_bar.py"
