"""A method's parameters in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import PlaceError, TargetedTransformer
from ckpt_surgery.codemods.repair import Definition


class ReorderParameters(TargetedTransformer):
    """Puts the first parameters after `self` in the order of `names`.

    Each keeps its annotation, its default, the comment behind it and those on the lines above it.
    """

    def __init__(self, method: Definition, names: Sequence[str]) -> None:
        super().__init__(method)
        self._names = tuple(names)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """The method with its new signature; a function inside it stays as it is.

        Raises:
            PlaceError: these are not the method's first parameters.
        """
        if not self.at_target:
            return updated_node
        first, *rest = updated_node.params.params
        moved, others = rest[: len(self._names)], rest[len(self._names) :]
        by_name = {parameter.name.value: parameter for parameter in moved}
        if by_name.keys() != set(self._names) or len(moved) != len(self._names):
            raise PlaceError(
                f"the first parameters of {self.definition.name} after self are not {', '.join(self._names)}"
            )
        defaults = [by_name[name].default is not None for name in self._names]
        if defaults != sorted(defaults):
            raise PlaceError(
                f"{self.definition.name} cannot take a parameter without a default behind one with a default"
            )
        ordered = _ordered([first, *moved], [first.name.value, *self._names], updated_node.whitespace_before_params)
        return updated_node.with_changes(params=updated_node.params.with_changes(params=[*ordered, *others]))


@dataclass(frozen=True, slots=True)
class _Gap:
    """What separates a parameter from the next one: a comment behind the one, and comments above the other."""

    space: cst.BaseParenthesizableWhitespace
    behind: cst.Comment | None = None
    above_next: Sequence[cst.EmptyLine] = ()


def _ordered(
    parameters: Sequence[cst.Param], names: Sequence[str], before: cst.BaseParenthesizableWhitespace
) -> list[cst.Param]:
    """The parameters in the order of `names`; what separates them stays, but for comments, which go with theirs."""
    gaps = [_gap(parameter) for parameter in parameters]
    by_name = {parameter.name.value: at for at, parameter in enumerate(parameters)}
    order = [by_name[name] for name in names]
    above = [*(gaps[at - 1].above_next for at in order[1:]), gaps[-1].above_next]
    spaces = [before, *(gap.space for gap in gaps)]
    break_ = next((space for space in spaces if isinstance(space, cst.ParenthesizedWhitespace)), None)
    return [
        _at(parameters[at], place, _commented(gap.space, gaps[at].behind, below, break_))
        for at, place, gap, below in zip(order, parameters, gaps, above, strict=True)
    ]


def _gap(parameter: cst.Param) -> _Gap:
    comma = parameter.comma
    space = comma.whitespace_after if isinstance(comma, cst.Comma) else parameter.whitespace_after_param
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return _Gap(space)
    return _Gap(space, space.first_line.comment, [line for line in space.empty_lines if line.comment])


def _at(parameter: cst.Param, place: cst.Param, space: cst.BaseParenthesizableWhitespace) -> cst.Param:
    """A parameter in the place of another one, with this space behind it."""
    if isinstance(place.comma, cst.Comma):
        comma, behind = place.comma.with_changes(whitespace_after=space), place.whitespace_after_param
        return parameter.with_changes(comma=comma, whitespace_after_param=behind, star=place.star)
    return parameter.with_changes(comma=place.comma, whitespace_after_param=space, star=place.star)


def _commented(
    space: cst.BaseParenthesizableWhitespace,
    behind: cst.Comment | None,
    below: Sequence[cst.EmptyLine],
    break_: cst.ParenthesizedWhitespace | None,
) -> cst.BaseParenthesizableWhitespace:
    """A space with these comments in the place of its own; `break_` is a line break, for one that has none."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        if break_ is None or not (behind or below):
            return space
        space = break_.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())
    old = space.first_line
    width = "  " if behind and not old.comment else "" if old.comment and not behind else old.whitespace.value
    first = old.with_changes(whitespace=cst.SimpleWhitespace(width), comment=behind)
    blank = [line for line in space.empty_lines if not line.comment]
    return space.with_changes(first_line=first, empty_lines=[*blank, *below])
