"""Which classes are blocks: the outermost stack elements that mix positions, and those checkpointed by hand."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.tree.source_tree import SourceTree
from tests.codemods.tree.trees import FOO, class_named, source_tree

MODEL = """
class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True
    def __init__(self):
        self.layers = nn.ModuleList([FooLayer() for _ in range(2)])
"""
LAYER = """
class FooLayer({base}):
    def __init__(self):
        self.inner = {inner}()
"""
HEAD = "from torch import nn\nclass FooAttention(nn.Module): ...\nclass FooMLP(nn.Module): ...\n"


def tree_with(base: str = "nn.Module", inner: str = "FooAttention", model: str = MODEL, more: str = "") -> SourceTree:
    return source_tree({FOO: HEAD + more + LAYER.format(base=base, inner=inner) + model})


def plain(tree: SourceTree) -> set[str]:
    return {ref.name for ref in tree.blocks.plain}


def test_a_stack_element_with_attention_inside_is_a_plain_block() -> None:
    tree = tree_with()
    (element,) = tree.blocks.elements(tree.containers.supported)
    assert (element.holder.name, element.attribute, element.element.name) == ("FooModel", "layers", "FooLayer")
    assert element.is_block
    assert plain(tree) == {"FooLayer"}


def test_a_stack_element_that_mixes_no_positions_is_no_block() -> None:
    tree = tree_with(inner="FooMLP")
    (element,) = tree.blocks.elements(tree.containers.supported)
    assert not element.is_block
    assert plain(tree) == set()


@pytest.mark.parametrize("mixer", ["FooAttention", "FooMLP"])
def test_positions_may_be_mixed_at_any_depth(mixer: str) -> None:
    more = f"class FooWrapper(nn.Module):\n    def __init__(self):\n        self.inner = {mixer}()\n"
    tree = tree_with(inner="FooWrapper", more=more)
    assert tree.blocks.mixes(class_named(tree, "FooLayer")) is (mixer == "FooAttention")


def test_a_layer_is_no_plain_block_and_checkpoints() -> None:
    tree = tree_with(base="GradientCheckpointingLayer")
    assert plain(tree) == set()
    assert tree.blocks.checkpoints(class_named(tree, "FooLayer"))
    assert not tree.blocks.checkpoints(class_named(tree, "FooAttention"))


def test_a_stack_element_that_holds_a_layer_is_no_block() -> None:
    tree = tree_with(inner="FooInner", more="class FooInner(GradientCheckpointingLayer): ...\n")
    assert tree.blocks.holds_layer(class_named(tree, "FooLayer"))
    assert plain(tree) == set()


def test_a_model_without_the_flag_has_no_plain_blocks() -> None:
    assert plain(tree_with(model=MODEL.replace("True", "False"))) == set()


def test_whatever_an_inline_branch_checkpoints_is_a_plain_block() -> None:
    forward = """
    def forward(self, hidden_states):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states
"""
    tree = tree_with(inner="FooMLP", model=MODEL + forward)
    assert [ref.name for ref in tree.blocks.with_inlines] == ["FooModel"]
    assert plain(tree) == {"FooLayer"}


def test_the_callers_of_a_class_are_found_through_its_stack() -> None:
    forward = (
        "    def forward(self, x):\n        for layer in self.layers:\n            x = layer(x)\n        return x\n"
    )
    tree = tree_with(model=MODEL + forward)
    ((owner, call),) = tree.blocks.callers[class_named(tree, "FooLayer")]
    assert (owner.name, len(call.args)) == ("FooModel", 1)
    assert class_named(tree, "FooAttention") not in tree.blocks.callers


@pytest.mark.parametrize("returned", ["FooTower(config)", "registry[config.name](config)"], ids=["a class", "unknown"])
def test_what_a_function_of_another_file_makes_is_not_from_another_package(returned: str) -> None:
    model = "class FooModel(PreTrainedModel):\n    def __init__(self, config):\n        self.tower = build(config)\n"
    builder = f"class FooTower(nn.Module): ...\ndef build(config):\n    return {returned}\n"
    tree = source_tree({FOO: f"{HEAD}from .builder import build\n{model}", "/t/models/foo/builder.py": HEAD + builder})
    assert list(tree.blocks.foreign(class_named(tree, "FooModel"))) == []
    parts = {part.name for part in tree.containers.parts(class_named(tree, "FooModel"))}
    assert parts == ({"FooTower"} if "Tower" in returned else set())
