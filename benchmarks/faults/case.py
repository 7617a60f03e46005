"""The fault described by a file in `cases`, and the two scripts made of it: the faulty one and its twin.

A case is one script. The twins differ in `if MENDED:` or `a if MENDED else b`; the two
scripts that users would have written come of it by folding that, so that tools which read source see one alone.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
KINDS = (
    "never checkpointed",
    "arguments lost",
    "cache written",
    "random numbers",
    "state twice",
    "late binding",
    "routing drift",
    "mode",
    "wrapper and sharding",
    "adapters",
    "offload",
    "loss and tiles",
    "compile",
    "precision",
)
FAULTY, MENDED = "faulty", "mended"
TWINS = (FAULTY, MENDED)


@dataclass(frozen=True, slots=True)
class Case:
    """A fault that was reported.

    Attributes:
        name: of its file.
        summary: the first line of the docstring.
        source: the public issue, pull request or commit.
        kind: one of `KINDS`.
        saw: what a user saw.
        right: what is right.
        cause: texts of which one is in a message that names the cause: a rule's code, or words.
        cure: `wrap` or `apply` where `wrap_blocks` or `apply` makes the gradients right; empty where neither can.
        ranks: how many processes train together.
        held_out: whether it was rebuilt by someone who had not seen the judges.
    """

    name: str
    summary: str
    source: str
    kind: str
    saw: str
    right: str
    cause: Sequence[str]
    cure: str = ""
    ranks: int = 1
    held_out: bool = False

    @property
    def project(self) -> str:
        """The project on GitHub that had the fault."""
        return "/".join(self.source.removeprefix("https://github.com/").split("/")[:2])


def read_case(file: Path) -> Case:
    """Read the literal `FAULT` of a case.

    Raises:
        ValueError: It has none, or one with an unknown kind or cure.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAULT":
            fault: Mapping[str, Any] = ast.literal_eval(node.value)
            case = Case(file.stem, (ast.get_docstring(tree) or "").split("\n")[0], **fault)
            if case.kind not in KINDS or case.cure not in ("", "wrap", "apply"):
                raise ValueError(f"{file}: unknown kind {case.kind!r} or cure {case.cure!r}")
            return case
    raise ValueError(f"{file}: no FAULT")


def read_cases(folder: Path = CASES) -> list[Case]:
    """Read all cases in a folder, by name."""
    return [read_case(file) for file in sorted(folder.glob("*.py")) if file.stem != "__init__"]


def twin(source: str, which: str) -> str:
    """Return the script that a user has written, faulty or mended, without what the case says of it."""
    return f"{ast.unparse(_Fold(which == MENDED).visit(ast.parse(source)))}\n"


class _Fold(ast.NodeTransformer):
    """Takes the branch of `MENDED`, and drops the constants at the head."""

    def __init__(self, mended: bool) -> None:
        self._mended = mended

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        return (node.body if self._mended else node.orelse) if _asks(node.test) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return (node.body if self._mended else node.orelse) if _asks(node.test) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        self.generic_visit(node)
        return None if ast.unparse(node.targets[0]) in ("MENDED", "FAULT") else node


def _asks(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "MENDED"
