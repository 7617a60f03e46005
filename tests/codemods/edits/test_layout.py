"""A call laid out anew takes the shortest form that fits its line."""

from __future__ import annotations

from ckpt_surgery.codemods.edits.arguments import RearrangeArguments
from ckpt_surgery.codemods.repair import Definition, NewArgument, Occurrence
from tests.codemods.edits.transforming import transform

WIDTH = 40
ARGUMENTS = (NewArgument(0, None), NewArgument(1, None))


def rendered(
    text: str, arguments: tuple[NewArgument, ...] = ARGUMENTS, *, before: str = "    ", after: str = ""
) -> str:
    """Render the call `f(...)` of a method anew, as it appears after `before`."""
    body = f"def g():\n{before}{text}{after}\n"
    call = Occurrence(Definition("g"), text.partition("(")[0])
    made = transform(RearrangeArguments(call, arguments, width=WIDTH), body)
    return made.removeprefix(f"def g():\n{before}").removesuffix(f"{after}\n")


def test_what_shares_the_line_counts() -> None:
    text = "function(aaaaaaaaaa, bbbbbbbbbb)"
    assert len(text) == WIDTH - 8
    assert "\n" not in rendered(text, before="    x = ")
    assert "\n" in rendered(text, before="    xx = ")
    assert "\n" in rendered(text, before="    x = ", after="[0]")
