"""The interpreter of statements: the values of names where branches, loops and exceptions meet."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest

from ckpt_surgery.codemods.facts.interpreter import Interpreter


class Strings(Interpreter[frozenset[str]]):
    """An interpreter whose values are the strings that a name may be bound to."""

    nothing = frozenset()
    passes = 2

    def join(self, values: Sequence[frozenset[str]]) -> frozenset[str]:
        """Return all the strings."""
        return frozenset().union(*values)

    def value(self, node: ast.expr) -> frozenset[str]:
        return frozenset({str(node.value)}) if isinstance(node, ast.Constant) else super().value(node)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 'a'\nif t:\n    x = 'b'", "ab"),
        ("x = 'a'\nif t:\n    x = 'b'\n    return", "a"),
        ("x = 'a'\nif t:\n    raise x\nelse:\n    x = 'b'", "b"),
        ("x = 'a'\nfor i in y:\n    x = 'b'", "ab"),
        ("x = z = 'a'\nfor i in y:\n    x = z\n    z = 'b'", "ab"),
        ("x = z = 'a'\nfor i in y:\n    if i:\n        z = 'b'\n        continue\n    x = z", "ab"),
        ("x = 'a'\nwhile t:\n    x = 'b'\n    break", "ab"),
        ("x = 'a'\nfor i in y:\n    x = 'b'\n    return", "a"),
        ("x = 'a'\ntry:\n    x = 'b'\nexcept E:\n    pass", "ab"),
        ("x = 'a'\ntry:\n    x = 'b'\nexcept E:\n    x = 'c'\n    return", "b"),
        ("x = 'a'\ntry:\n    x = 'b'\n    return\nfinally:\n    x = x", "b"),
        ("with a as x:\n    x = 'b'", "b"),
        ("x = 'a'\nmatch t:\n    case 1:\n        x = 'b'\n    case _:\n        x = 'c'", "abc"),
        ("w = x = 'a'", "a"),
        ("x, (y, *z) = 'a', ('b', 'c')", "a"),
        ("x = 'a' if t else 'b'", "ab"),
        ("y = [(x := 'a') for i in t]", "a"),
        ("y = [i for i in t if (x := 'a')]", "a"),
        ("for i, x in enumerate(['a', 'b']):\n    pass", "ab"),
        ("x = 'a'\nfor x, i in enumerate(y):\n    pass", "a"),
        ("for i, x in zip('a', ['b']):\n    pass", "b"),
        ("x = 'a'\nasync def f():\n    x = 'b'", "a"),
    ],
)
def test_a_name_holds_what_it_may_be_bound_to(source: str, expected: str) -> None:
    reader = Strings()
    reader.follow(ast.parse(source).body)
    assert reader.env["x"] == frozenset(expected)
    assert (reader.conditions, reader.loops, reader.tries) == ((), (), 0)


def test_code_after_a_branch_that_leaves_sees_the_other_outcome() -> None:
    met: dict[str, list[tuple[str, bool]]] = {}

    class Conditions(Strings):
        def call(self, node: ast.Call) -> frozenset[str]:
            met[ast.unparse(node)] = [(ast.unparse(each.test), each.truth) for each in self.conditions]
            return self.nothing

    text = "if a:\n    f()\n    return\ng()\nif b:\n    return\nx = h() if c else d and i()\n"
    Conditions().follow(ast.parse(f"def run():\n    {text.replace(chr(10), chr(10) + '    ')}\n").body[0].body)  # type: ignore[attr-defined]
    left = [("a", False), ("b", False)]
    assert met == {
        "f()": [("a", True)],
        "g()": left[:1],
        "h()": [*left, ("c", True)],
        "i()": [*left, ("c", False), ("d", True)],
    }
