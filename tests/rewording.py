"""The package with every message in capitals, to show that nothing depends on how a message is worded.

`install` makes this process import `ckpt_surgery` with the sentences in its source in capitals. A string is a
sentence if two words of lower-case letters are next to each other in it. Strings that the code compares or searches
for stay: a decision that looks at a message no longer finds it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

_SENTENCE = re.compile(r"(?<![\w.%-])[a-z']{2,}[,:;]? [a-z']{2,}(?![\w.(=-])")
_FIELD = re.compile(r"(\{[^{}]*\})")
_CODE = re.compile(r"^\s*(from|import|class|def|if|for|return|with) .*", re.MULTILINE)
_SEARCHES = frozenset(
    [
        "compile",
        "count",
        "endswith",
        "find",
        "findall",
        "finditer",
        "fullmatch",
        "index",
        "match",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rpartition",
        "search",
        "split",
        "startswith",
        "sub",
        "words",
    ]
)


class Capitals(ast.NodeTransformer):
    """A transformer that puts a module's sentences in capitals, but for docstrings and what is compared."""

    def __init__(self) -> None:
        self.changed = 0

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Leave what is compared: it is not a message."""
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Leave a pattern: it is compared too."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Leave a docstring."""
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Leave what is searched for."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _SEARCHES:
            if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Constant):
                node.func = self.visit(node.func)
            return node
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Leave keys: they are looked up."""
        node.values = [self.visit(value) for value in node.values]
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Treat an f-string as one sentence, whatever is between its pieces."""
        text = "x".join(str(piece.value) for piece in node.values if isinstance(piece, ast.Constant))
        for piece in node.values:
            if isinstance(piece, ast.FormattedValue):
                piece.value = self.visit(piece.value)
            elif isinstance(piece, ast.Constant) and is_sentence(text):
                piece.value = capitals(str(piece.value))
                self.changed += 1
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Put a sentence in capitals."""
        if isinstance(node.value, str) and is_sentence(node.value):
            self.changed += 1
            return ast.copy_location(ast.Constant(capitals(node.value)), node)
        return node


def capitals(text: str) -> str:
    """Put the text in capitals but for the names of a template's fields."""
    return "".join(part if part.startswith("{") else part.upper() for part in _FIELD.split(text))


def is_sentence(text: str) -> bool:
    """Tell whether a string holds words for a reader and is not code."""
    return bool(_SENTENCE.search(text)) and not _CODE.search(text)


class _Loader(SourceFileLoader):
    def source_to_code(  # type: ignore[override]
        self, data: bytes, path: str, *, _optimize: int = -1
    ) -> CodeType:
        tree = Capitals().visit(ast.parse(data, path))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source: the cached code on disk has the usual messages."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the package's module on disk, with our loader."""
        if fullname.partition(".")[0] != "ckpt_surgery":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin and spec.origin.endswith(".py"):
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def install() -> None:
    """Import the package in capitals from now on. None of it may have been imported before."""
    if any(name.partition(".")[0] == "ckpt_surgery" for name in sys.modules):
        raise RuntimeError("ckpt_surgery was imported already")
    sys.meta_path.insert(0, _Finder())
