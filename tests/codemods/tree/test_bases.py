"""A base class in another file, however the file is imported."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.tree.classes import Answer
from tests.codemods.tree.trees import BAR, FOO, class_named, source_tree


@pytest.mark.parametrize(
    "line",
    [
        "from ..bar.modeling_bar import BarLayer as Base",
        "from ..bar import modeling_bar\nBase = modeling_bar.BarLayer",
        "from transformers.models.bar.modeling_bar import BarLayer as Base",
    ],
    ids=["relative", "module", "absolute"],
)
def test_a_base_class_is_followed_into_another_file(line: str) -> None:
    bar = "class BarLayer(GradientCheckpointingLayer): ..."
    text = f"{line}\nclass A({'modeling_bar.BarLayer' if 'Base =' in line else 'Base'}): ..."
    for tree in (source_tree({FOO: text, BAR: bar}), source_tree({FOO: text}, {BAR: bar})):
        assert tree.bases.is_layer(class_named(tree, "A")) is Answer.YES
