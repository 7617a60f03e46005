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

import libcst as cst

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
    return cst.parse_module(source).visit(_Fold(which == MENDED)).code


class _Fold(cst.CSTTransformer):
    """Takes the branch of `MENDED`, and drops the constants at the head."""

    def __init__(self, mended: bool) -> None:
        self._mended = mended

    def leave_If(
        self, original_node: cst.If, updated_node: cst.If
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        if not _asks(updated_node.test):
            return updated_node
        if self._mended:
            return cst.FlattenSentinel(_lines(updated_node.body))
        if isinstance(updated_node.orelse, cst.Else):
            return cst.FlattenSentinel(_lines(updated_node.orelse.body))
        return updated_node.orelse or cst.RemoveFromParent()

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        if not _asks(updated_node.test):
            return updated_node
        return updated_node.body if self._mended else updated_node.orelse

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        match updated_node.body[0]:
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value="MENDED" | "FAULT"))]):
                return cst.RemoveFromParent()
        return updated_node


def _asks(test: cst.BaseExpression) -> bool:
    return isinstance(test, cst.Name) and test.value == "MENDED"


def _lines(body: cst.BaseSuite) -> list[cst.BaseStatement]:
    return [line for line in body.body if isinstance(line, cst.BaseStatement)]
