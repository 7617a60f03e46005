"""Parameters in another order: annotations and defaults move along, separators stay."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.edits.methods import ReorderParameters
from ckpt_surgery.codemods.repair import Definition
from tests.codemods.edits.transforming import transform


def ordered(signature: str) -> str:
    """Move the second parameter of a signature in front of the first."""
    made = transform(ReorderParameters(Definition("F.g"), ["b", "a"]), f"class F:\n    def g{signature}: pass\n")
    return made.removeprefix("class F:\n    def g").removesuffix(": pass\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(self, a, b)", "(self, b, a)"),
        ("(self, a: int = 1, b=2, *, c)", "(self, b=2, a: int = 1, *, c)"),
    ],
    ids=[
        "on one line",
        "with annotations and defaults",
    ],
)  # fmt: skip
def test_what_separates_them_stays(before: str, after: str) -> None:
    assert ordered(before) == after
