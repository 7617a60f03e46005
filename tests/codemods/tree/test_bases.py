"""Whether a class is a layer, as far as the files that are read tell."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.tree.classes import Answer
from tests.codemods.tree.trees import FOO, class_named, source_tree


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A(GradientCheckpointingLayer): ...", Answer.YES),
        ("class A(B): ...\nclass B(GradientCheckpointingLayer): ...", Answer.YES),
        ("class A(Mixin, modeling_layers.GradientCheckpointingLayer): ...", Answer.YES),
        ("from torch import nn\nclass A(nn.Module): ...", Answer.NO),
        ("class A: ...", Answer.NO),
        ("from elsewhere import B\nclass A(B): ...", Answer.UNKNOWN),
        ("class A(make_base()): ...", Answer.UNKNOWN),
        ("from ..bar.modeling_bar import B\nclass A(B): ...", Answer.UNKNOWN),
    ],
)
def test_whether_a_class_is_a_layer_has_three_answers(text: str, expected: Answer) -> None:
    tree = source_tree({FOO: text})
    assert tree.bases.is_layer(class_named(tree, "A")) is expected
