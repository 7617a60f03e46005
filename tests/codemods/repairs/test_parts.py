"""The whole file is parsed for a repair where a part of it would not do."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.repair import (
    Definition,
    ImportName,
    Occurrence,
    PassArguments,
)
from ckpt_surgery.codemods.repairs.parts import Part, by_part

TEXT = '''\
"""About."""

from torch import nn

LIMIT = 1


@decorated
class FooLayer(nn.Module):  # a block
    def forward(self, states):
        return states


class FooModel(nn.Module):
    # Copied from bar
    @property
    def size(self):
        return 1

    def forward(self, states):
        for layer in self.layers:
            states = layer(states=states)
        return states


class FooHead(nn.Module): pass
'''
IMPORT = ImportName("a.py", None, None, "a.b", "C", 80)
CALL = PassArguments("a.py", None, Occurrence(Definition("FooModel.forward"), "layer"), (), 80)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("class FooHead", "class FooModel"),
        TEXT.replace("\nclass FooLayer", "\nclass FooModel"),
        TEXT + "\n\nimport late\n",
    ],
    ids=["a class defined twice", "another class of the name", "an import below"],
)
def test_all_is_parsed_where_a_part_would_not_do(text: str) -> None:
    repair = IMPORT if "late" in text else CALL
    assert list(by_part(text, extract(text), [repair])) == [Part(0, len(text))]
