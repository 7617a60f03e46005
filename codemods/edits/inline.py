"""An inline checkpoint goes: what follows its else takes its place; needed guards and other comments stay."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from ckpt_surgery.codemods.edits.arguments import joined, place_of
from ckpt_surgery.codemods.edits.branch_comments import comments, left_of, without_announcement, without_stand_in
from ckpt_surgery.codemods.edits.layout import laid_out
from ckpt_surgery.codemods.edits.targeted import (
    STATEMENTS,
    ModuleTransformer,
    PlaceError,
    code_of,
    leading_lines,
    margin_of,
    occurrence_in,
    replaced,
)
from ckpt_surgery.codemods.repair import Occurrence


@dataclass
class RemoveInlineBranch(ModuleTransformer):
    """Replaces an `if` by its else branch; an `elif` becomes the `else` of what stands before it.

    `guards` are the positions of statements of its body that stay under the `if`. Comments of what goes are kept above
    the statements that move out, unless these repeat them or they speak of the branch.
    """

    target: Occurrence
    guards: Collection[int] = field(default=(), kw_only=True)
    width: int = field(kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, branch = occurrence_in(tree, self.target, cst.If, "if")
        holder, other = around[-1], branch.orelse
        if not isinstance(other, cst.Else):
            raise PlaceError("the if has no else branch of its own that could stay")
        footer = list(other.body.footer) if isinstance(other.body, cst.IndentedBlock) else []
        above = without_announcement(branch.leading_lines)
        if isinstance(holder, cst.If):
            body = cst.IndentedBlock(_below(_lost(branch, other), _moved(other.body)), footer=footer)
            return replaced(around, branch, cst.Else(body, leading_lines=above))
        if not isinstance(holder, cst.IndentedBlock):
            raise PlaceError("an if at module level is not replaced: name one in a function")
        kept = self._kept(branch)
        moved = _moved(other.body)
        if isinstance(other.body, cst.IndentedBlock):
            margin = margin_of(around, tree.default_indent)
            moved = [joined(old, margin, tree.default_indent, self.width) for old in moved]
        lost = [*([cst.EmptyLine(indent=False)] if kept else above), *_lost(branch, other, kept)]
        at = holder.body.index(branch)
        after = holder.body[at + 1 :]
        statements = [*holder.body[:at], *kept, *_below(lost, moved), *_below(footer, after)]
        footer = [*([] if after else footer), *holder.footer]
        return replaced(around[:-1], holder, holder.with_changes(body=statements, footer=footer))

    def _kept(self, branch: cst.If) -> list[cst.If]:
        """The branch with its guards alone; nothing where none is to stay."""
        if not self.guards or not isinstance(branch.body, cst.IndentedBlock):
            return []
        guards = [statement for at, statement in enumerate(branch.body.body) if at in self.guards]
        return [branch.with_changes(body=branch.body.with_changes(body=guards, footer=()), orelse=None)]


def _moved(body: cst.BaseSuite) -> list[cst.BaseStatement]:
    """The statements of an else branch, each on a line of its own, without comments about the branch that goes."""
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)]
    first, *rest = cst.ensure_type(body, cst.IndentedBlock).body
    above = without_stand_in(without_announcement(leading_lines(first)), first)
    return [first.with_changes(leading_lines=above), *rest]


def _lost(branch: cst.If, other: cst.Else, kept: Collection[cst.If] = ()) -> list[cst.EmptyLine]:
    """Comments from the `if` to its `else:` that neither the else branch nor what is kept of the branch has."""
    block = other.body if isinstance(other.body, cst.IndentedBlock) else None
    staying = [
        other.body.body,
        block.footer if block else (),
        *(part for one in kept for part in (one.test, one.body)),
    ]
    repeated = {comment for part in staying for comment in comments(part)}
    head = [block.header] if block else []
    going = [branch.test, branch.whitespace_after_test, branch.body, *other.leading_lines, *head]
    return _lines(dict.fromkeys(comment for comment in left_of(going) if comment not in repeated))


def _below(lines: Sequence[cst.EmptyLine], statements: Sequence[cst.BaseStatement]) -> Sequence[cst.BaseStatement]:
    """The statements with these lines above all that is above the first."""
    if not statements:
        return ()
    first, *rest = statements
    return [first.with_changes(leading_lines=[*lines, *leading_lines(first)]), *rest]


def _lines(texts: Iterable[str]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]


@dataclass
class RemoveInlineExpression(ModuleTransformer):
    """Replaces `a if test else b` by `b`, laid out as a formatter would.

    Comments of what goes are kept above the statement, unless they speak of checkpointing.
    """

    target: Occurrence
    width: int = field(kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, node = occurrence_in(tree, self.target, cst.IfExp, "conditional expression")
        kept = _alone(node)
        if isinstance(kept, cst.Call):
            kept = laid_out(kept, None, place_of(around, node, tree.default_indent, self.width))
        at = max(at for at, outer in enumerate(around) if isinstance(outer, STATEMENTS))
        statement = replaced(around[at:], node, kept)
        spaces = [node.whitespace_before_if, node.whitespace_after_if, node.whitespace_before_else]
        going = [*node.lpar, node.body, *spaces, node.test, node.whitespace_after_else, *node.rpar]
        above = [*leading_lines(statement), *_lines(left_of(going))]
        return replaced(around[:at], around[at], statement.with_changes(leading_lines=above))


def _alone(node: cst.IfExp) -> cst.BaseExpression:
    """What follows the else, in the parentheses of the whole where it needs them."""
    kept = node.orelse
    atom = isinstance(kept, cst.Call | cst.Name | cst.Attribute | cst.Subscript)
    head = code_of(kept.func) if isinstance(kept, cst.Call) else code_of(kept)
    if kept.lpar or not node.lpar or (atom and "\n" not in head):
        return kept
    return kept.with_changes(lpar=node.lpar, rpar=node.rpar)
