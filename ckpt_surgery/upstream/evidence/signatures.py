"""Find forwards whose positional parameters a series changed, which breaks callers that pass them by position."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ckpt_surgery.upstream.evidence.results import SignatureChange


def changed_signatures(before: Path, after: Path, file: str) -> Iterator[SignatureChange]:
    """Yield the forwards of one file, a path relative to both trees, for which calls by position may break.

    They may if a positional parameter was moved, removed or renamed, if one lost its default or was added without one,
    or if `*args` was removed. Only classes with their own forward in both trees are compared.
    """
    paths = (before / file, after / file)
    if not file.endswith(".py") or not all(map(Path.is_file, paths)):
        return
    forwards_before, forwards_after = map(_own_forwards, paths)
    for key, (line, new) in forwards_after.items():
        _, old = forwards_before.get(key, (line, new))
        names, new_names = ([argument.arg for argument in (*a.posonlyargs, *a.args)] for a in (old, new))
        required = set(names[: len(names) - len(old.defaults)])
        new_required = set(new_names[: len(new_names) - len(new.defaults)])
        lost_varargs = old.vararg is not None and new.vararg is None
        if new_names[: len(names)] != names or lost_varargs or not new_required <= required:
            yield SignatureChange(file, line, key[0], ast.unparse(old), ast.unparse(new))


def _own_forwards(path: Path) -> dict[tuple[str, int], tuple[int, ast.arguments]]:
    """Return the forward of each class that defines one: its line, and its arguments without `self` and annotations.

    The number in the key tells classes of the same name apart.
    """
    forwards: dict[tuple[str, int], tuple[int, ast.arguments]] = {}
    seen: dict[str, int] = defaultdict(int)
    classes = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda node: node.lineno):
        methods = (method for method in node.body if isinstance(method, ast.FunctionDef))
        own = next((method for method in methods if method.name == "forward"), None)
        if own is not None:
            plain = copy.deepcopy(own.args)
            for argument in ast.walk(plain):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            del (plain.posonlyargs or plain.args)[:1]
            forwards[node.name, seen[node.name]] = own.lineno, plain
        seen[node.name] += 1
    return forwards
