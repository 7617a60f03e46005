"""Every transformer on the standard library and the installed packages changes what is named, and nothing else.

The syntax tree gets the same change by position; both trees have to be equal, and no comment may go but those about
a branch. Each kind of change is tried on a sample of the files.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import libcst as cst
import pytest

from ckpt_surgery.codemods.edits.arguments import RearrangeArguments, RenameOccurrence
from ckpt_surgery.codemods.edits.inline import RemoveInlineBranch
from ckpt_surgery.codemods.edits.layer_base import LayerBase
from ckpt_surgery.codemods.edits.methods import RemoveMethod, ReorderParameters
from ckpt_surgery.codemods.edits.paths import ModuleTransformer
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import span_of
from ckpt_surgery.codemods.repair import NewArgument
from ckpt_surgery.codemods.tree.places import Places
from tests.test_property import corpus

SAMPLE = 12
"""Files that have room for a kind of change."""
LONGEST = 40_000
"""The most characters of a file: libcst is slow, and long files are not of other kinds."""
MARK = "marked"
GOES = re.compile(r"checkpoint|use_reentrant|# None for|# ?(?:type:|noqa|fmt:|pylint:|pyright:|mypy:|pragma:)")
"""The comments that go with a branch."""


class Substitution(ast.NodeTransformer):
    """A replacement of a node by another or several."""

    def __init__(self, old: ast.AST, new: ast.AST | list[ast.stmt] | None) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt] | None:
        return self.new if node is self.old else self.generic_visit(node)


def comments(text: str) -> set[str]:
    return {
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node but patterns and those in f-strings, whose places Python 3.11 gets wrong."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.JoinedStr | ast.pattern):
            yield node
            yield from nodes(node)


def changed_call(node: ast.Call, places: Places) -> tuple[ModuleTransformer, ast.AST]:
    mark = ast.Name(MARK, ast.Load())
    transformer = RearrangeArguments(places.call(span_of(node)), [NewArgument(None, None, MARK)], width=100)
    return transformer, ast.Call(node.func, [mark], [])


def same_call(node: ast.Call, places: Places) -> tuple[ModuleTransformer, ast.AST]:
    stars = [NewArgument(at, "*" if isinstance(arg, ast.Starred) else None) for at, arg in enumerate(node.args)]
    named = [NewArgument(len(stars) + at, word.arg or "**") for at, word in enumerate(node.keywords)]
    return RearrangeArguments(places.call(span_of(node)), [*stars, *named], width=100), node


def renamed(node: ast.Name, places: Places) -> tuple[ModuleTransformer, ast.AST]:
    return RenameOccurrence(places.name(span_of(node)), MARK), ast.Name(MARK, node.ctx)


def without_branch(node: ast.If, places: Places) -> tuple[ModuleTransformer, list[ast.stmt]]:
    return RemoveInlineBranch(places.branch(span_of(node)), width=100), node.orelse


def as_layer(node: ast.ClassDef, places: Places) -> tuple[ModuleTransformer, ast.AST]:
    layer = ast.Name("GradientCheckpointingLayer", ast.Load())
    new = ast.ClassDef(**{**dict(ast.iter_fields(node)), "bases": [layer, *node.bases]})  # type parameters stay
    return LayerBase(places.definition(span_of(node))), new


def reordered(node: ast.FunctionDef, places: Places) -> tuple[ModuleTransformer, ast.AST]:
    first, *rest = node.args.args
    args = ast.arguments(**{**dict(ast.iter_fields(node.args)), "args": [first, *rest[::-1]]})
    new = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "args": args})
    return ReorderParameters(places.definition(span_of(node)), [arg.arg for arg in rest[::-1]]), new


def without_method(node: ast.FunctionDef, places: Places) -> tuple[ModuleTransformer, None]:
    return RemoveMethod(places.definition(span_of(node))), None


def in_a_statement_list(tree: ast.AST, branch: ast.If) -> bool:
    """Tell whether a branch is not an `elif`."""
    return not any(isinstance(node, ast.If) and node.orelse[:1] == [branch] for node in ast.walk(tree))


def candidates(tree: ast.Module, kind: str) -> list[ast.AST]:
    found = list(nodes(tree))
    calls = [node for node in found if isinstance(node, ast.Call)]
    functions = [node for node in found if isinstance(node, ast.FunctionDef)]
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    match kind:
        case "call":
            return list(calls)
        case "same call":
            ordered = [c for c in calls if not any(isinstance(arg, ast.Starred) for arg in c.args)]
            return [c for c in ordered if c.args or c.keywords]
        case "name":
            return [node for node in found if isinstance(node, ast.Name)]
        case "branch":
            inside = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.If)]
            plain = [node for node in inside if node.orelse and not isinstance(node.orelse[0], ast.If)]
            return [node for node in plain if in_a_statement_list(tree, node)]
        case "class":
            bases = [{ast.unparse(base).rpartition(".")[2] for base in node.bases} for node in classes]
            return [node for node, names in zip(classes, bases, strict=True) if "Module" not in names]
        case "parameters":
            return [f for f in functions if len(f.args.args) > 2 and not f.args.defaults and not f.args.posonlyargs]
    return [f for cls in classes for f in cls.body if isinstance(f, ast.FunctionDef) and len(cls.body) > 1]


CHANGES = {
    "call": changed_call,
    "same call": same_call,
    "name": renamed,
    "branch": without_branch,
    "class": as_layer,
    "parameters": reordered,
    "method": without_method,
}


def same(left: object, right: object) -> bool:
    """Compare two syntax trees without the places of their nodes."""
    if isinstance(left, ast.AST):
        return type(left) is type(right) and all(
            same(getattr(left, name, []), getattr(right, name, [])) for name in left._fields
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def hashes(text: str) -> set[str]:
    """Return each line's text from its first `#`: everything that may be a comment."""
    return {line[line.index("#") :] for line in text.splitlines() if "#" in line}


def is_changed_as_named(path: Path, kind: str, draw: random.Random) -> bool:
    """Make a change that the file has room for, and check the outcome; false where it has none."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    found = candidates(tree, kind)
    if not found:
        return False
    node = draw.choice(found)
    transformer, new = CHANGES[kind](node, Places(SourceText(text), extract(text)))  # type: ignore[operator]
    try:
        after = transformer.transform_module(cst.parse_module(text)).code
    except (RecursionError, cst.ParserSyntaxError):  # sums of hundreds of texts: `apply` leaves such files alone
        return False
    where = f"{kind}: {path}:{getattr(node, 'lineno', 0)}"
    assert same(ast.parse(after), Substitution(node, new).visit(tree)), where
    if kind not in ("call", "method") and hashes(text) != hashes(after):
        assert comments(after) <= comments(text), where
        lost = comments(text) - comments(after)
        assert not lost or (kind == "branch" and all(map(GOES.search, lost))), where
    return True


@pytest.mark.parametrize("kind", CHANGES)
def test_what_is_named_is_changed_and_nothing_else(kind: str) -> None:
    files = [path for path in corpus() if path.stat().st_size < LONGEST]
    draw = random.Random(kind)
    tried = (is_changed_as_named(path, kind, draw) for path in draw.sample(files, len(files)))
    assert sum(islice(filter(None, tried), SAMPLE)) == SAMPLE


def test_trees_that_differ_are_told_apart() -> None:
    one, other = (ast.parse(f"f({argument})") for argument in ("a", "b"))
    assert same(one, ast.parse("f( a )"))
    assert not same(one, other)
    assert not same(ast.parse("f(1)"), ast.parse("f(True)"))
