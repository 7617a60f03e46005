"""What is done to whole methods: they go, a comment above them goes, or their parameters get another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

import libcst as cst

from ckpt_surgery.codemods.edits import paths
from ckpt_surgery.codemods.repair import Definition


@dataclass
class RemoveMethod(paths.ModuleTransformer):
    """Takes a method out of its class, with the comments right above it; `pass` takes its place in an empty class."""

    target: Definition

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, method = paths.definition_in(tree, self.target, cst.FunctionDef)
        block = around[-1]
        if not isinstance(block, cst.IndentedBlock):
            raise paths.PlaceError(f"{self.target.name} is in no class")
        above = dropwhile(lambda line: line.comment is not None, reversed(paths.leading_lines(method)))
        above = dropwhile(lambda line: line.comment is None, above)  # a blank line sets apart what stays
        staying, at = [*above][::-1], block.body.index(method)
        if len(block.body) == 1:
            return paths.replaced(around, method, cst.SimpleStatementLine([cst.Pass()], leading_lines=staying))
        body, footer = [*block.body[:at], *block.body[at + 1 :]], [*staying, *block.footer]
        if at < len(body):
            own = paths.leading_lines(body[at])
            own = own if at else [*dropwhile(lambda line: line.comment is None, own)]
            body[at], footer = body[at].with_changes(leading_lines=[*staying, *own]), [*block.footer]
        return paths.replaced(around[:-1], block, block.with_changes(body=body, footer=footer))


@dataclass
class RemoveComment(paths.ModuleTransformer):
    """Takes out the line with a comment above a class or function, or between its decorators and it."""

    target: Definition
    comment: str

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, owner = paths.definition_in(tree, self.target, cst.ClassDef, cst.FunctionDef)
        kept = {
            name: list(filter(self._stays, getattr(owner, name)))
            for name in ("leading_lines", "lines_after_decorators")
        }
        return paths.replaced(around, owner, owner.with_changes(**kept))

    def _stays(self, line: cst.EmptyLine) -> bool:
        return line.comment is None or line.comment.value.strip() != self.comment


@dataclass
class ReorderParameters(paths.ModuleTransformer):
    """Puts the first parameters after `self` in the order of `names`.

    Each keeps its annotation, its default, the comment behind it and those on the lines above it.
    """

    target: Definition
    names: Sequence[str]

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, method = paths.definition_in(tree, self.target, cst.FunctionDef)
        count = len(self.names) + 1
        moved, others = method.params.params[:count], method.params.params[count:]
        at = {parameter.name.value: at for at, parameter in enumerate(moved)}
        if sorted(self.names) != sorted(parameter.name.value for parameter in moved[1:]):
            raise paths.PlaceError(
                f"the first parameters of {self.target.name} after self are not {', '.join(self.names)}"
            )
        defaults = [moved[at[name]].default is not None for name in self.names]
        if defaults != sorted(defaults):
            raise paths.PlaceError(
                f"{self.target.name} cannot take a parameter without a default behind one with a default"
            )
        ordered = _ordered(moved, [0, *(at[name] for name in self.names)], method.whitespace_before_params)
        params = method.params.with_changes(params=[*ordered, *others])
        return paths.replaced(around, method, method.with_changes(params=params))


def _ordered(
    parameters: Sequence[cst.Param], order: Sequence[int], before: cst.BaseParenthesizableWhitespace
) -> list[cst.Param]:
    """The parameters in an order of their positions.

    What separates them stays in its place, but for comments, which go with their parameters.
    """
    spaces = [_space_behind(parameter) for parameter in parameters]
    said = [_comments(space) for space in spaces]
    break_ = next((space for space in (before, *spaces) if isinstance(space, cst.ParenthesizedWhitespace)), None)
    ordered: list[cst.Param] = []
    for at, following, place, space in zip(order, [*order[1:], len(order)], parameters, spaces, strict=True):
        new = _commented(space, said[at][0], said[following - 1][1], break_)
        moved = parameters[at].with_changes(comma=place.comma, whitespace_after_param=new, star=place.star)
        if isinstance(place.comma, cst.Comma):
            comma, behind = place.comma.with_changes(whitespace_after=new), place.whitespace_after_param
            moved = moved.with_changes(comma=comma, whitespace_after_param=behind)
        ordered.append(moved)
    return ordered


def _space_behind(parameter: cst.Param) -> cst.BaseParenthesizableWhitespace:
    comma = parameter.comma
    return comma.whitespace_after if isinstance(comma, cst.Comma) else parameter.whitespace_after_param


def _comments(space: cst.BaseParenthesizableWhitespace) -> tuple[cst.Comment | None, list[cst.EmptyLine]]:
    """The comment behind a parameter, and those on lines above the next one."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return None, []
    return space.first_line.comment, [line for line in space.empty_lines if line.comment]


def _commented(
    space: cst.BaseParenthesizableWhitespace,
    behind: cst.Comment | None,
    above_next: Sequence[cst.EmptyLine],
    break_: cst.ParenthesizedWhitespace | None,
) -> cst.BaseParenthesizableWhitespace:
    """A space with these comments in the place of its own; `break_` is a line break, for one that has none."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        if break_ is None or not (behind or above_next):
            return space
        space = break_.with_changes(empty_lines=())
    blank = [line for line in space.empty_lines if not line.comment]
    first = space.first_line.with_changes(whitespace=cst.SimpleWhitespace("  " if behind else ""), comment=behind)
    return space.with_changes(first_line=first, empty_lines=[*blank, *above_next])
