"""A new layer class beside a class that must stay plain: an imported one, or one that is also used elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ckpt_surgery.codemods.edits.imports import by_type, imports_plainly, module_of, names_of, plain_statement
from ckpt_surgery.codemods.edits.targeted import ModuleTransformer, PlaceError, TargetedTransformer
from ckpt_surgery.codemods.repair import Definition
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


class AddDerivedLayer(TargetedTransformer):
    """Puts `class Name(GradientCheckpointingLayer, Base)` with a docstring below a class."""

    def __init__(self, base: Definition, name: str, docstring: str) -> None:
        super().__init__(base)
        self._name, self._docstring = name, docstring

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """The class, and the new one below it."""
        if not self.at_target:
            return updated_node
        derived = _derived(self._name, updated_node.name.value, f'"""{self._docstring}"""')
        blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        return cst.FlattenSentinel([updated_node, derived.with_changes(leading_lines=blank)])


class DeriveFromImport(ModuleTransformer):
    """Turns a guarded `from package import Block as FooBlock` into the plain import and a layer called `FooBlock`."""

    def __init__(self, name: str, original: str) -> None:
        super().__init__()
        self._name, self._original = name, original
        self._done = False

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module after the change.

        Raises:
            PlaceError: no statement under a guard imports the class, and nothing else, under that name.
        """
        changed = super().transform_module(tree)
        if not self._done:
            raise PlaceError(f"no guarded statement imports {self._original} as {self._name} alone")
        return changed

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Not entered."""
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Not entered."""
        return False

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """The guard's block: its import without the alias, and the class below its imports."""
        body = list(updated_node.body)
        imports = {at: node for at, line in enumerate(body) if (node := _imported(line))}
        at = next((at for at, node in imports.items() if self._is_alias(node)), None)
        if at is None:
            return updated_node
        self._done = True
        module = module_of(imports[at])
        twin = next((other for other, node in imports.items() if imports_plainly(node, module)), None)
        if twin is None:
            body[at] = _with_names(body[at], module, [self._original])
        else:
            body[twin] = _with_names(body[twin], module, [*names_of(imports[twin]), self._original])
            del body[at]
        last = max(at for at, line in enumerate(body) if _imported(line) is not None)
        derived = _derived(self._name, self._original, "pass")
        body.insert(last + 1, derived.with_changes(leading_lines=[cst.EmptyLine(indent=False)]))
        return updated_node.with_changes(body=body)

    def _is_alias(self, node: cst.ImportFrom) -> bool:
        if isinstance(node.names, cst.ImportStar) or len(node.names) != 1:
            return False
        (alias,) = node.names
        return alias.evaluated_name == self._original and alias.evaluated_alias == self._name


def _derived(name: str, base: str, body: str) -> cst.ClassDef:
    return cst.ensure_type(cst.parse_statement(f"class {name}({LAYER_CLASS}, {base}):\n    {body}\n"), cst.ClassDef)


def _imported(line: cst.CSTNode) -> cst.ImportFrom | None:
    """The import that a line consists of."""
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 and isinstance(line.body[0], cst.ImportFrom):
        return line.body[0]
    return None


def _with_names(line: cst.BaseStatement, module: str, names: Sequence[str]) -> cst.SimpleStatementLine:
    ordered = sorted(set(names), key=by_type)
    return cst.ensure_type(line, cst.SimpleStatementLine).with_changes(body=[plain_statement(module, ordered)])
