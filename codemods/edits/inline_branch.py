"""An inline branch goes: the else branch moves out, needed guards and comments about anything else stay."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ckpt_surgery.codemods.edits.arguments import CallJoiner
from ckpt_surgery.codemods.edits.branch_comments import comments, left_of, without_announcement, without_stand_in
from ckpt_surgery.codemods.edits.targeted import DEFINITIONS, HOLDERS, OccurrenceTransformer, PlaceError, leading_lines
from ckpt_surgery.codemods.repair import Occurrence

_ENTERED = frozenset({cst.Module, *DEFINITIONS, *HOLDERS})


class RemoveInlineBranch(OccurrenceTransformer):
    """Replaces an `if` by its else branch; an `elif` becomes the `else` of what stands before it.

    `guards` are the positions of statements of its body that stay under the `if`. Comments of what goes are kept above
    the statements that move out, unless these repeat them or they speak of the branch.
    """

    def __init__(self, branch: Occurrence, *, guards: Collection[int] = (), width: int) -> None:
        super().__init__(branch, "if")
        self._guards = frozenset(guards)
        self._width = width
        self._replaced = False

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module after the change.

        Raises:
            PlaceError: there is no such branch, or it has no else branch of its own, or is in no function or class.
        """
        changed = super().transform_module(tree)
        if not self._replaced:
            raise PlaceError("an if at module level is not replaced: name one in a function")
        return changed

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to go on inside a node: only statements that hold others are entered."""
        return type(node) in _ENTERED and super().on_visit(node)

    def visit_If(self, node: cst.If) -> bool:
        """Count it."""
        self.matches(node)
        return True

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        """With the branch as its `elif`: with the branch's else as its own."""
        if original_node.orelse is None or original_node.orelse is not self.found:
            return updated_node
        self._replaced = True
        branch = cst.ensure_type(updated_node.orelse, cst.If)
        other = _else_of(branch)
        moved = _moved(other.body)
        first = moved[0].with_changes(leading_lines=[*_lines(_lost(branch)), *leading_lines(moved[0])])
        body = cst.IndentedBlock([first, *moved[1:]], footer=_footer(other.body))
        above = without_announcement(branch.leading_lines)
        return updated_node.with_changes(orelse=cst.Else(body, leading_lines=above))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """The block with the statements of the else branch in the place of the branch."""
        at = next((at for at, statement in enumerate(original_node.body) if statement is self.found), None)
        if at is None:
            return updated_node
        self._replaced = True
        statements = list(updated_node.body)
        branch = cst.ensure_type(statements[at], cst.If)
        moved, below = self._instead(branch)
        footer = list(updated_node.footer)
        if at + 1 < len(statements):
            following = statements[at + 1]
            statements[at + 1] = following.with_changes(leading_lines=[*below, *leading_lines(following)])
        else:
            footer = [*below, *footer]
        statements[at : at + 1] = moved
        return updated_node.with_changes(body=statements, footer=footer)

    def _instead(self, branch: cst.If) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
        """The statements that take the place of a branch, and the comments below them."""
        other = _else_of(branch)
        one_line = isinstance(other.body, cst.SimpleStatementSuite)
        moved = _moved(other.body)
        if not one_line:
            joiner = CallJoiner(self.margin, self.step, self._width)
            moved = [statement for old in moved if isinstance(statement := old.visit(joiner), cst.BaseStatement)]
        kept = self._kept(branch)
        lost = _lines(_lost(branch, without=kept))
        if kept is None:
            above = [*without_announcement(branch.leading_lines), *lost]
            moved[0] = moved[0].with_changes(leading_lines=[*above, *leading_lines(moved[0])])
            return moved, _footer(other.body)
        blank = cst.EmptyLine(indent=False)
        moved[0] = moved[0].with_changes(leading_lines=[blank, *lost, *leading_lines(moved[0])])
        return [kept, *moved], _footer(other.body)

    def _kept(self, branch: cst.If) -> cst.If | None:
        """The branch with its guards alone; None where none is to stay."""
        if not self._guards or not isinstance(branch.body, cst.IndentedBlock):
            return None
        guards = [statement for at, statement in enumerate(branch.body.body) if at in self._guards]
        return branch.with_changes(body=branch.body.with_changes(body=guards, footer=()), orelse=None)


def _else_of(branch: cst.If) -> cst.Else:
    if not isinstance(branch.orelse, cst.Else):
        raise PlaceError("the if has no else branch of its own that could stay")
    return branch.orelse


def _moved(body: cst.BaseSuite) -> list[cst.BaseStatement]:
    """The statements of an else branch, each on a line of its own, without comments about the branch that goes."""
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)]
    first, *rest = cst.ensure_type(body, cst.IndentedBlock).body
    above = without_stand_in(without_announcement(leading_lines(first)), first)
    return [first.with_changes(leading_lines=above), *rest]


def _footer(body: cst.BaseSuite) -> list[cst.EmptyLine]:
    return list(body.footer) if isinstance(body, cst.IndentedBlock) else []


def _lines(texts: Collection[str]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]


def _lost(branch: cst.If, without: cst.If | None = None) -> Collection[str]:
    """Comments from the `if` to its `else:` that neither the else branch nor what is kept of the branch has."""
    other = _else_of(branch)
    staying = [other.body.body, *([without.test, without.body] if without else [])]
    kept = {comment for part in staying for comment in comments(part)}
    if isinstance(other.body, cst.IndentedBlock):
        kept.update(comment for line in other.body.footer for comment in comments(line))
    head = other.body.header if isinstance(other.body, cst.IndentedBlock) else ()
    going = [branch.test, branch.whitespace_after_test, branch.body, *other.leading_lines, head]
    return dict.fromkeys(comment for comment in left_of(going) if comment not in kept)
