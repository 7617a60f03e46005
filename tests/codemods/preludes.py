"""The base files of cases, `preludes/<name>.prelude.py`, and how a case's own text is joined to one.

The rules of joining are in tests/codemods/tools.py, where a case is described.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PRELUDES = Path(__file__).parent / "preludes"
_OPENING = "<opening>"


@cache
def prelude(name: str) -> str:
    """Read a prelude. Its first line is the path of its file: `# file: ...`."""
    return (PRELUDES / f"{name}.prelude.py").read_text(encoding="utf-8")


@cache
def joined(base: str, own: str) -> str:
    """Merge a case's `own` parts into the prelude `base`, with two blank lines between parts at top level.

    A comment behind the last statement of `own` raises ValueError: it would be lost.
    """
    parts = _merged(_file(base), _file(own))
    return "\n\n\n".join(part.text for part in parts.values()) + "\n"


@dataclass(frozen=True, slots=True)
class _Part:
    """A class, a function, or a run of other statements, with the comments above it."""

    node: ast.stmt
    """Its first statement."""

    text: str
    source: Sequence[str]
    """The lines of the whole file."""

    def over(self, base: _Part) -> _Part:
        """Merge this part over `base`: a class keeps members that only the base has, anything else is replaced."""
        if not isinstance(self.node, ast.ClassDef) or not isinstance(base.node, ast.ClassDef):
            return self
        head, members = _class(self.node, self.text, self.source)
        base_head, base_members = _class(base.node, base.text, base.source)
        if head == f"class {self.node.name}:":
            head = base_head
        body = "\n\n".join(member.text for member in _merged(base_members, members).values())
        return _Part(self.node, f"{head}\n{body or '    pass'}", self.source)


def _file(text: str) -> dict[str, _Part]:
    """Split a file into parts by name."""
    body, lines = ast.parse(text).body, text.splitlines()
    if body and any(lines[body[-1].end_lineno :]):
        raise ValueError(f"nothing follows {lines[-1]!r}")
    opening = itertools.takewhile(lambda statement: not _name(statement), body)
    imports = [number for number, statement in enumerate(opening, start=1) if _imports(statement)]
    return _parts(body, lines, opening=max(imports, default=0))


def _class(node: ast.ClassDef, text: str, lines: Sequence[str]) -> tuple[str, dict[str, _Part]]:
    """Return the head of a class and its members by name, without `pass` and `...`."""
    first = node.body[0]
    arguments = [*node.bases, *(keyword.value for keyword in node.keywords)]
    end = max([node.lineno, *(argument.end_lineno or 0 for argument in arguments)])
    while end < first.lineno and not re.match(r"[^#]*:\s*(#.*)?$", lines[end - 1]):
        end += 1
    head = list(lines[(node.end_lineno or 0) - len(text.split("\n")) : end])
    if end == first.lineno:
        head[-1] = head[-1][: first.col_offset].rstrip()
    body = node.body[ast.unparse(first) in ("pass", "...") :]
    opening = itertools.takewhile(lambda statement: not _name(statement), body)
    return "\n".join(head), _parts(body, lines, opening=len(list(opening)), after=end)


def _parts(body: Sequence[ast.stmt], lines: Sequence[str], opening: int, after: int = 0) -> dict[str, _Part]:
    """Split a body into parts by name, from the line after `after`; its first `opening` statements are one part."""
    runs = [(_OPENING, list(body[:opening]))] if opening else []
    runs += [(name, list(run)) for name, run in itertools.groupby(body[opening:], _name)]
    parts = {}
    for name, run in runs:
        end = run[-1].end_lineno or after
        text = "\n".join(lines[after:end]).strip("\n")
        parts[name or text] = _Part(run[0], text, lines)
        after = end
    return parts


def _name(statement: ast.stmt) -> str:
    return statement.name if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""


def _imports(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(statement))


def _merged(base: dict[str, _Part], own: dict[str, _Part]) -> dict[str, _Part]:
    """Merge the parts in the order of the base."""
    order = list(base)
    following = ""
    for name in reversed(own):
        if name not in base:
            order.insert(0 if name == _OPENING else order.index(following) if following else len(order), name)
        following = name
    both = base | own
    return {name: both[name].over(base[name]) if name in base else both[name] for name in order}
