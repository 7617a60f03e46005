"""Forwards of two trees compared: those that no longer take what callers may pass by position."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ChangedForward:
    """A class whose forward changed, as it is in the finished series."""

    file: str
    line: int
    name: str
    before: str
    after: str


def changed_forwards(before: Path, after: Path, file: str) -> Iterator[ChangedForward]:
    """The forwards of one file, a path relative to both trees, that a caller by position may not fit any more."""
    paths = (before / file, after / file)
    if not file.endswith(".py") or not all(map(Path.is_file, paths)):
        return
    forwards_before, forwards_after = map(_own_forwards, paths)
    for key, forward in forwards_after.items():
        old = forwards_before.get(key)
        if old is not None and _breaks(old, forward):
            yield ChangedForward(
                file, forward.line, key[0], ast.unparse(old.arguments), ast.unparse(forward.arguments)
            )


@dataclass(frozen=True, slots=True)
class _OwnForward:
    """The forward that a class defines: the line of its `def`, and its arguments without `self` and annotations."""

    line: int
    arguments: ast.arguments

    @property
    def names(self) -> list[str]:
        return [argument.arg for argument in (*self.arguments.posonlyargs, *self.arguments.args)]

    @property
    def required(self) -> set[str]:
        """The positional parameters without a default."""
        return set(self.names[: len(self.names) - len(self.arguments.defaults)])


def _own_forwards(path: Path) -> dict[tuple[str, int], _OwnForward]:
    """The forward of each class that defines one, in order; the key counts classes of the same name."""
    forwards: dict[tuple[str, int], _OwnForward] = {}
    seen: dict[str, int] = defaultdict(int)
    classes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda node: node.lineno):
        methods = (method for method in node.body if isinstance(method, ast.FunctionDef))
        own = next((method for method in methods if method.name == "forward"), None)
        if own is not None:
            forwards[node.name, seen[node.name]] = _OwnForward(own.lineno, _plain(own.args))
        seen[node.name] += 1
    return forwards


def _plain(arguments: ast.arguments) -> ast.arguments:
    plain = copy.deepcopy(arguments)
    for node in ast.walk(plain):
        if isinstance(node, ast.arg):
            node.annotation = None
    del (plain.posonlyargs or plain.args)[:1]
    return plain


def _breaks(before: _OwnForward, after: _OwnForward) -> bool:
    """Whether a call that passed its arguments to `before` by position may not fit `after`."""
    moved = after.names[: len(before.names)] != before.names
    lost_rest = before.arguments.vararg is not None and after.arguments.vararg is None
    return moved or lost_rest or not after.required <= before.required
