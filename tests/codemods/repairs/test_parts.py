"""The parts of a file for repairs: the least that parses alone, without overlaps."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ckpt_surgery.codemods.edits.rewrite import rewritten
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.repair import (
    Definition,
    ImportName,
    Occurrence,
    PassArguments,
    SourceRepair,
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


def parts_of(text: str, *repairs: SourceRepair) -> list[str]:
    """Split a text into parts; each has to parse, and every repair to fit in its part."""
    grouped = by_part(text, extract(text), repairs)
    parts = list(grouped)
    assert all(left.end <= right.start for left, right in pairwise(parts))
    assert sorted(map(str, repairs)) == sorted(str(repair) for part in grouped for repair in grouped[part])
    shown = [part.before + text[part.start : part.end] + part.after for part in parts]
    for part, code in zip(parts, shown, strict=True):
        assert rewritten(code, grouped[part]) is not None
    return shown


def test_more_on_the_line_of_the_last_import_is_parsed_with_it() -> None:
    text = TEXT.replace("import nn\n", "import nn; SIZES = (\n    1,\n)\n")
    (part,) = parts_of(text, IMPORT)
    assert "LIMIT = 1" in part


def test_an_import_in_a_statement_is_not_parsed_without_it() -> None:
    text = TEXT.replace("LIMIT = 1", "with quiet():\n    import foo\n    LIMIT = 1")
    (part,) = parts_of(text, IMPORT)
    assert part.endswith("import nn\n")


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


def test_the_head_of_a_file_is_indented_as_its_classes_are() -> None:
    text = TEXT.replace("    ", "\t").replace("import nn\n", f"import nn\nfrom a.b import {'A' * 70}\n")
    ((part, repairs),) = by_part(text, extract(text), [IMPORT]).items()
    assert part.step == "\t"
    assert f"import (\n\t{'A' * 70},\n\tC,\n)" in (rewritten(text[part.start : part.end], repairs, part.step) or "")
