"""An inline checkpoint goes: what follows its else takes its place; needed guards and other comments stay."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import libcst as cst

from ckpt_surgery.codemods.edits.arguments import CallJoiner, place_of
from ckpt_surgery.codemods.edits.branch_comments import comments, left_of, without_announcement, without_stand_in
from ckpt_surgery.codemods.edits.layout import laid_out
from ckpt_surgery.codemods.edits.targeted import (
    ModuleTransformer,
    PlaceError,
    below,
    chosen,
    code_of,
    definition_in,
    inside,
    leading_lines,
    margin_of,
    replaced,
    statement_of,
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
        path = chosen(inside(definition_in(tree, self.target.definition), cst.If), self.target, "if")
        holder, branch = path[-2], cst.ensure_type(path[-1], cst.If)
        other = branch.orelse
        if not isinstance(other, cst.Else):
            raise PlaceError("the if has no else branch of its own that could stay")
        footer = list(other.body.footer) if isinstance(other.body, cst.IndentedBlock) else []
        above = without_announcement(branch.leading_lines)
        if isinstance(holder, cst.If):
            first, *rest = _moved(other.body)
            body = cst.IndentedBlock([below(_lost(branch, other), first), *rest], footer=footer)
            return replaced(path, cst.Else(body, leading_lines=above))
        if not isinstance(holder, cst.IndentedBlock):
            raise PlaceError("an if at module level is not replaced: name one in a function")
        kept = self._kept(branch)
        moved = _moved(other.body)
        if isinstance(other.body, cst.IndentedBlock):
            joiner = CallJoiner(margin_of(path), tree.default_indent, self.width)
            moved = [joined for old in moved if isinstance(joined := old.visit(joiner), cst.BaseStatement)]
        moved[0] = below([*([cst.EmptyLine(indent=False)] if kept else above), *_lost(branch, other, kept)], moved[0])
        at = holder.body.index(branch)
        after = list(holder.body[at + 1 :])
        if after:
            after[0], footer = below(footer, after[0]), []
        statements = [*holder.body[:at], *kept, *moved, *after]
        return replaced(path[:-1], holder.with_changes(body=statements, footer=[*footer, *holder.footer]))

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
        choices = inside(definition_in(tree, self.target.definition), cst.IfExp)
        path = chosen(choices, self.target, "conditional expression")
        node = cst.ensure_type(path[-1], cst.IfExp)
        kept = _alone(node)
        if isinstance(kept, cst.Call):
            kept = laid_out(kept, None, place_of(path, self.width))
        at = statement_of(path)
        statement = replaced(path[at:], kept)
        spaces = [node.whitespace_before_if, node.whitespace_after_if, node.whitespace_before_else]
        going = [*node.lpar, node.body, *spaces, node.test, node.whitespace_after_else, *node.rpar]
        above = [*leading_lines(statement), *_lines(left_of(going))]
        return replaced(path[: at + 1], statement.with_changes(leading_lines=above))


def _alone(node: cst.IfExp) -> cst.BaseExpression:
    """What follows the else, in the parentheses of the whole where it needs them."""
    kept = node.orelse
    atom = isinstance(kept, cst.Call | cst.Name | cst.Attribute | cst.Subscript)
    head = code_of(kept.func) if isinstance(kept, cst.Call) else code_of(kept)
    if kept.lpar or not node.lpar or (atom and "\n" not in head):
        return kept
    return kept.with_changes(lpar=node.lpar, rpar=node.rpar)
