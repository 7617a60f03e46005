"""Remove a method, reorder its parameters, or remove a comment above a class or function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

import libcst as cst

from ckpt_surgery.codemods.edits import paths
from ckpt_surgery.codemods.repair import Definition


@dataclass
class RemoveMethod(paths.ModuleTransformer):
    """Removes a method from its class, with the comments directly above it; a class left empty gets `pass`."""

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
    """Removes the line with a comment above a class or function, or between its decorators and it."""

    target: Definition
    comment: str

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, owner = paths.definition_in(tree, self.target, cst.ClassDef, cst.FunctionDef)
        kept: dict[str, list[cst.EmptyLine]] = {"leading_lines": [], "lines_after_decorators": []}
        for name, lines in kept.items():
            above: Sequence[cst.EmptyLine] = getattr(owner, name)
            lines += [line for line in above if not line.comment or line.comment.value.strip() != self.comment]
        return paths.replaced(around, owner, owner.with_changes(**kept))


@dataclass
class ReorderParameters(paths.ModuleTransformer):
    """Puts the first parameters after `self` in the order of `names`, each with its annotation and default.

    The separators between them, comments included, stay where they are.
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
        chosen = [moved[0], *(moved[at[name]] for name in self.names)]
        ordered = [
            new.with_changes(comma=old.comma, whitespace_after_param=old.whitespace_after_param, star=old.star)
            for new, old in zip(chosen, moved, strict=True)
        ]
        params = method.params.with_changes(params=[*ordered, *others])
        return paths.replaced(around, method, method.with_changes(params=params))
