"""Parameters in another order: the comments behind one and above it go with it, what separates them stays."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.edits.methods import ReorderParameters
from ckpt_surgery.codemods.repair import Definition
from tests.codemods.edits.transforming import transform


def ordered(signature: str) -> str:
    """The signature with its second parameter in front of its first one."""
    made = transform(ReorderParameters(Definition("F.g"), ["b", "a"]), f"class F:\n    def g{signature}: pass\n")
    return made.removeprefix("class F:\n    def g").removesuffix(": pass\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(self, a, b)", "(self, b, a)"),
        ("(self, a: int = 1, b=2, *, c)", "(self, b=2, a: int = 1, *, c)"),
        (
            "(\n        self,\n        a,  # of a\n        b,\n    )",
            "(\n        self,\n        b,\n        a,  # of a\n    )",
        ),
        (
            "(\n        self,  #\n        # a\n        a,\n        # b\n        b,  # and b\n        c,\n    )",
            "(\n        self,  #\n        # b\n        b,  # and b\n        # a\n        a,\n        c,\n    )",
        ),
        (
            "(\n        self, a, b  # of b\n    )",
            "(\n        self, b,  # of b\n        a\n    )",
        ),
        (
            "(\n        self,\n        a,\n        b,\n        # the rest\n        c,\n    )",
            "(\n        self,\n        b,\n        a,\n        # the rest\n        c,\n    )",
        ),
    ],
    ids=[
        "on one line",
        "with annotations and defaults",
        "a comment behind",
        "comments above and behind",
        "a comment that needs a line break",
        "a comment on what does not move",
    ],
)  # fmt: skip
def test_comments_go_with_their_parameters(before: str, after: str) -> None:
    assert ordered(before) == after
