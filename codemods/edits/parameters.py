"""A method's parameters in another order."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import PlaceError, TargetedTransformer
from ckpt_surgery.codemods.repair import Definition


class ReorderParameters(TargetedTransformer):
    """Puts the first parameters after `self` in the order of `names`; each keeps its annotation and default.

    What separates parameters, comments included, stays where it is.
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
        ordered = [
            by_name[name].with_changes(
                comma=place.comma, whitespace_after_param=place.whitespace_after_param, star=place.star
            )
            for name, place in zip(self._names, moved, strict=True)
        ]
        return updated_node.with_changes(params=updated_node.params.with_changes(params=[first, *ordered, *others]))
