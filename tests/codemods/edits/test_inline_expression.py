"""A conditional expression gives way to what follows its else, laid out anew; comments about anything else stay."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.edits.inline import RemoveInlineExpression
from ckpt_surgery.codemods.edits.paths import PlaceError
from ckpt_surgery.codemods.repair import Definition, Occurrence
from tests.codemods.edits.transforming import transform


def kept(body: str, index: int = 0) -> str:
    """The body of a function after the change."""
    text = f"def g():\n{body}"
    made = transform(RemoveInlineExpression(Occurrence(Definition("g"), "", index), width=40), text)
    return made.removeprefix("def g():\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    x = run(f, x) if on else f(x)\n", "    x = f(x)\n"),
        ("    x = (\n        run(f, x)\n        if on\n        else f(x)\n    )\n", "    x = f(x)\n"),
        ("    x = (run(f, x) if on else f(\n        x\n    ))[0]\n", "    x = f(x)[0]\n"),
        ("    x = (run(f, x) if on else a or b)[0]\n", "    x = (a or b)[0]\n"),
        ("    return h(run(f) if on else f(x), y)\n", "    return h(f(x), y)\n"),
        (
            "    x = (\n        run(f, x)\n        if on\n        else f.\n        g(x)\n    )\n",
            "    x = (\n        f.\n        g(x)\n    )\n",
        ),
        (
            "    x = (\n        run(f)  # why\n        if on  # gradient checkpointing\n        else f(x)\n    )\n",
            "    # why\n    x = f(x)\n",
        ),
        (
            "    x = run(f) if on else function(aaaaaaaaaaaaaaaaa, bbbbbbbb)\n",
            "    x = function(\n        aaaaaaaaaaaaaaaaa, bbbbbbbb\n    )\n",
        ),
    ],
    ids=[
        "on one line",
        "in parentheses",
        "with something behind",
        "an expression that needs its parentheses",
        "an argument",
        "a callee over several lines",
        "comments",
        "too long for its line",
    ],
)  # fmt: skip
def test_what_follows_the_else_stays(before: str, after: str) -> None:
    assert kept(before) == after


def test_only_the_one_that_is_named_goes() -> None:
    body = "    x = a if b else c\n    y = d if e else f\n"
    assert kept(body, 1) == "    x = a if b else c\n    y = f\n"
    with pytest.raises(PlaceError, match="there is no conditional expression number 2 in g"):
        kept(body, 2)
