"""Facts of one file: the calls of blocks in a method, whatever statement they stand in, and no others."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.extract import extract

SOURCE = """\
class Model:
    def __init__(self, config):
        self.layers = nn.ModuleList([Layer(config)])

    def forward(self, x):
        for layer in self.layers:
{}
"""


def callees(body: str) -> list[str]:
    """Return the callees of the calls taken for those of a block."""
    lines = "\n".join(" " * 12 + line for line in body.split("\n"))
    return [call.callee for call in extract(SOURCE.format(lines)).classes[0].calls]


@pytest.mark.parametrize(
    "body",
    [
        "x = layer(x)",
        "x = layer.forward(x)",
        "other = layer\nx = other(x)",
        "x = (layer if x else layer)[0] + layer(x)",
        "other: Module = layer\nx = other(x)",
        "if (other := layer) is not None:\n    x = other(x)",
        "with context():\n    x = layer(x)",
        "try:\n    x = layer(x)\nexcept ValueError:\n    pass",
        "try:\n    pass\nexcept ValueError:\n    x = layer(x)",
        "while x:\n    x = layer(x)",
        "match x:\n    case 1:\n        x = layer(x)",
        "x += layer(x)",
        "assert layer(x)",
        "x = [layer(y) for y in x]",
        "x = [one(x) for one in self.layers]",
        "def run(y):\n    return layer(y)\nx = run(x)",
    ],
)
def test_a_call_of_a_block_is_seen(body: str) -> None:
    assert len(callees(body)) >= 1


@pytest.mark.parametrize(
    "body",
    [
        "x = other(x)",
        "x = layer.attribute.method(x)",
        "layer = wrap(layer)\nx = layer(x)",
        "layer, other = x\nx = layer(x)",
        "for layer in range(3):\n    x = layer(x)",
        "x = [layer(x) for layer in functions]",
        "with open(x) as layer:\n    x = layer(x)",
        "def run(layer):\n    return layer(x)\nx = run(print)",
        "x = (lambda layer: layer(x))(print)",
    ],
)
def test_a_call_of_something_else_is_not_taken_for_one(body: str) -> None:
    assert [callee for callee in callees(body) if callee.startswith("layer")] == []
