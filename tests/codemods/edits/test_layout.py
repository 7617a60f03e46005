"""A call laid out anew: the shortest form that fits, with comments at their arguments and values unchanged."""

from __future__ import annotations

import ast

import libcst as cst
import pytest

from ckpt_surgery.codemods.edits.arguments import Place, RearrangeArguments, laid_out
from ckpt_surgery.codemods.repair import Definition, NewArgument, Occurrence
from tests.codemods.edits.transforming import transform

WIDTH = 40
COMMENTED = "(\n            a + b  # why\n        )"
ARGUMENTS = (NewArgument(0, None), NewArgument(1, None))


def rendered(
    text: str, arguments: tuple[NewArgument, ...] = ARGUMENTS, *, before: str = "    ", after: str = ""
) -> str:
    """Render the call `f(...)` of a method anew, as it appears after `before`."""
    body = f"def g():\n{before}{text}{after}\n"
    call = Occurrence(Definition("g"), text.partition("(")[0])
    made = transform(RearrangeArguments(call, arguments, width=WIDTH), body)
    return made.removeprefix(f"def g():\n{before}").removesuffix(f"{after}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(a, b)", "f(a, b)"),
        ("f(\n        a, b\n    )", "f(a, b)"),
        ("f(a, b,)", "f(a, b)"),
        ("call(\n        aaaaaaaaaaaaaaaaaa, bbbbbbbbbbbb\n    )", None),
        ("call(aaaaaaaaaaaaaaaaaa, bbbbbbbbbbbb)", "call(\n        aaaaaaaaaaaaaaaaaa, bbbbbbbbbbbb\n    )"),
        ("f(\n        a,\n        b,\n    )", None),
        ("f(a,  # why\n        b)", "f(\n        a,  # why\n        b,\n    )"),
        ("f(\n        # above\n        a,\n        b,\n    )", None),
        ("f(\n        a,\n        b,\n        # below\n    )", None),
        ("f(x[1 :2], {'a':1})", None),
        ('f("""one\n two""", b)', 'f(\n        """one\n two""",\n        b,\n    )'),
        (f"f({COMMENTED}, c)", f"f(\n        {COMMENTED},\n        c,\n    )"),
    ],
    ids=[
        "as it is",
        "joined",
        "a trailing comma",
        "on a line of its own",
        "too long for its line",
        "one a line",
        "a comment",
        "a comment above",
        "a comment below",
        "values stay to the letter",
        "a string of several lines",
        "a comment in parentheses",
    ],
)  # fmt: skip
def test_the_layout(text: str, expected: str | None) -> None:
    assert rendered(text) == (text if expected is None else expected)


@pytest.mark.parametrize("arguments", [ARGUMENTS[:1], None])
def test_a_generator_that_stands_alone_gets_no_comma(arguments: tuple[NewArgument, ...] | None) -> None:
    call = cst.ensure_type(cst.parse_expression("join(aaaaaaaaaaaaaaa(b)\n for b in bbbbbbbbbbbbbbbbb)"), cst.Call)
    made = laid_out(call, arguments, Place("", WIDTH - 8, "    ", WIDTH - 8))
    ast.parse(cst.Module([]).code_for_node(made))


def test_what_shares_the_line_counts() -> None:
    text = "function(aaaaaaaaaa, bbbbbbbbbb)"
    assert len(text) == WIDTH - 8
    assert "\n" not in rendered(text, before="    x = ")
    assert "\n" in rendered(text, before="    xx = ")
    assert "\n" in rendered(text, before="    x = ", after="[0]")


def test_new_arguments_choose_order_keywords_and_defaults() -> None:
    pieces = (
        NewArgument(1, None),
        NewArgument(None, None, "None", "mask"),
        NewArgument(0, "size"),
        NewArgument(2, "**"),
    )
    assert rendered("f(a, states=s, **rest)", pieces) == (
        "f(\n        s,\n        None,  # mask\n        size=a,\n        **rest,\n    )"
    )


def test_a_call_under_a_condition_or_loop_is_measured_without_the_rest() -> None:
    for head in ("if", "while"):
        body = f"def g():\n    {head} f(a=a, b=b):\n        pass\n    else:\n        pass\n"
        made = transform(RearrangeArguments(Occurrence(Definition("g"), "f"), ARGUMENTS, width=WIDTH), body)
        assert made == body.replace("a=a, b=b", "a, b")


@pytest.mark.parametrize(
    "body",
    [
        "    if f(a=a, b=b): pass\n",
        "    if x: pass\n    else: f(a=a, b=b)\n",
        "    try: f(a=a, b=b)\n    finally: pass\n",
        "    with f(a=a, b=b): pass\n",
        "    match x:\n        case 1 if f(a=a, b=b): pass\n",
        "    @f(a=a, b=b)\n    def h(): pass\n",
    ],
)
def test_a_call_on_the_line_of_another_statement_is_measured_there(body: str) -> None:
    text = f"def g():\n{body}"
    made = transform(RearrangeArguments(Occurrence(Definition("g"), "f"), ARGUMENTS, width=WIDTH), text)
    assert made == text.replace("a=a, b=b", "a, b")


def test_the_line_ending_is_that_of_the_file() -> None:
    text = "def g():\r\n    f(\r\n        a=a,\r\n        b=b,\r\n    )\r\n"
    made = transform(RearrangeArguments(Occurrence(Definition("g"), "f"), ARGUMENTS, width=WIDTH), text)
    assert made == text.replace("a=a", "a").replace("b=b", "b")


def test_a_walrus_needs_parentheses_as_a_keyword() -> None:
    assert rendered("f(a, b := c)", (NewArgument(0, None), NewArgument(1, "d"))) == "f(a, d=(b := c))"


@pytest.mark.parametrize(("step", "width"), [("  ", 34), ("\t", 38)], ids=["two spaces", "tabs"])
def test_the_indentation_is_that_of_the_file(step: str, width: int) -> None:
    call = Occurrence(Definition("F.g"), "f")
    text = f"class F:\n{step}def g():\n{step * 2}x = f(aaaaaaaaaaaaaaaaaaaaa, b=b)\n"
    made = transform(RearrangeArguments(call, ARGUMENTS, width=width), text)
    assert made == (f"class F:\n{step}def g():\n{step * 2}x = f(\n{step * 3}aaaaaaaaaaaaaaaaaaaaa, b\n{step * 2})\n")
