"""CKPT009 on parts whose base classes cannot be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.codemods.finding import Applicability
from tests.codemods.snippets import LAYERED, PLAIN
from tests.codemods.tools import FOO, found, tree

BASE = "class FooModel(PreTrainedModel):\n    supports_gradient_checkpointing = True\n"
WHOLE = """

class FooForTraining(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.model = FooModel(config)
"""


@pytest.mark.parametrize(
    ("text", "applicability"),
    [(LAYERED, []), (LAYERED.replace("[FooLayer", "[nn.Linear"), [Applicability.UNKNOWN])],
    ids=["layers inside", "no layers inside"],
)
def test_a_part_is_looked_into_whatever_it_inherits(
    tmp_path: Path, text: str, applicability: list[Applicability]
) -> None:
    part = text.replace(BASE, "class FooModel(MyBase):\n").replace(
        "PreTrainedModel\n", "PreTrainedModel\nfrom my.base import MyBase\n", 1
    )
    tree(tmp_path, {FOO: part + WHOLE})
    assert [finding.applicability for finding in found(tmp_path, "CKPT009")] == applicability


def test_the_modules_of_a_stack_may_be_given_by_name(tmp_path: Path) -> None:
    tree(tmp_path, {FOO: PLAIN.replace("ModuleList([", "ModuleList(modules=[")})
    assert [(finding.code, finding.applicability) for finding in found(tmp_path)] == [("CKPT001", Applicability.SAFE)]
