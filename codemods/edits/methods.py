"""A method goes."""

from __future__ import annotations

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import PlaceError, TargetedTransformer
from ckpt_surgery.codemods.repair import Definition


class RemoveMethod(TargetedTransformer):
    """Takes a method out of its class, with the comments right above it; `pass` takes its place in an empty class."""

    def __init__(self, method: Definition) -> None:
        owner, _, self._name = method.name.rpartition(".")
        super().__init__(Definition(owner))
        self._index = method.index

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """The class without the method.

        Raises:
            PlaceError: the class has no such method of its own.
        """
        if ".".join(self._scope) != self.definition.name or not isinstance(updated_node.body, cst.IndentedBlock):
            return updated_node
        body = list(updated_node.body.body)
        methods = [at for at, node in enumerate(body) if isinstance(node, cst.FunctionDef) and self._named(node)]
        if len(methods) <= self._index:
            raise PlaceError(f"{self.definition.name} has no method {self._name} of its own")
        at = methods[self._index]
        above = _above(body.pop(at))
        if not body:
            body.append(cst.SimpleStatementLine([cst.Pass()], leading_lines=above))
        elif at == 0:
            body[0] = body[0].with_changes(leading_lines=[*above, *_without_blank(_lines(body[0]))])
        elif at < len(body):
            body[at] = body[at].with_changes(leading_lines=[*above, *_lines(body[at])])
        return updated_node.with_changes(body=updated_node.body.with_changes(body=body))

    def _named(self, node: cst.FunctionDef) -> bool:
        return node.name.value == self._name


def _lines(node: cst.BaseStatement) -> list[cst.EmptyLine]:
    return list(getattr(node, "leading_lines", ()))


def _above(method: cst.BaseStatement) -> list[cst.EmptyLine]:
    """The lines above a method that stay: those that a blank line sets apart from the comments right above it."""
    lines = _lines(method)
    while lines and lines[-1].comment is not None:
        lines.pop()
    while lines and lines[-1].comment is None:
        lines.pop()
    return lines


def _without_blank(lines: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    first = next((at for at, line in enumerate(lines) if line.comment is not None), len(lines))
    return lines[first:]
