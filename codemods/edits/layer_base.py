"""Make a class a GradientCheckpointingLayer, or derive a layer from a class that must stay plain."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ckpt_surgery.codemods.edits import paths
from ckpt_surgery.codemods.edits.imports import ImportLine, statement
from ckpt_surgery.codemods.repair import Definition
from ckpt_surgery.codemods.tree.classes import MODULES
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


@dataclass
class LayerBase(paths.ModuleTransformer):
    """Replaces `nn.Module` among a class's bases by the layer, or puts the layer in front of them."""

    target: Definition

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, node = paths.definition_in(tree, self.target, cst.ClassDef)
        bases = list(node.bases)
        plain = next((at for at, base in enumerate(bases) if paths.squeezed(base.value) in MODULES), None)
        if plain is not None:
            bases[plain] = bases[plain].with_changes(value=cst.Name(LAYER_CLASS))
        else:
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")) if bases else cst.MaybeSentinel.DEFAULT
            bases.insert(0, cst.Arg(cst.Name(LAYER_CLASS), comma=comma))
        return paths.replaced(around, node, node.with_changes(bases=bases))


@dataclass
class AddDerivedLayer(paths.ModuleTransformer):
    """Puts `class Name(GradientCheckpointingLayer, Base)` with a docstring below a class."""

    target: Definition
    name: str
    docstring: str

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, base = paths.definition_in(tree, self.target, cst.ClassDef)
        derived = _derived(self.name, base.name.value, f'"""{self.docstring}"""', blank_lines=2)
        return paths.replaced(around, base, base, derived)


@dataclass
class DeriveFromImport(paths.ModuleTransformer):
    """Turns a guarded `from package import Block as FooBlock` into the plain import and a layer called `FooBlock`."""

    name: str
    original: str

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        for around, line in paths.inside((tree,), cst.SimpleStatementLine):
            block = around[-1]
            inner = any(isinstance(node, cst.ClassDef | cst.FunctionDef) for node in around)
            if isinstance(block, cst.IndentedBlock) and not inner and self._is_alias(line):
                return paths.replaced(around[:-1], block, self._with_class(block, line))
        raise paths.PlaceError(f"no guarded statement imports {self.original} as {self.name} alone")

    def _is_alias(self, line: cst.SimpleStatementLine) -> bool:
        imported = ImportLine.of(line)
        if imported is None or not isinstance(imported.node, cst.ImportFrom):
            return False
        return imported.names == [self.original] and imported.bound == {self.name}

    def _with_class(self, block: cst.IndentedBlock, line: cst.SimpleStatementLine) -> cst.IndentedBlock:
        """Return a block with the plain import instead of the alias, and the class below all its imports."""
        body, at = list(block.body), block.body.index(line)
        imports = {at: imported for at, line in enumerate(body) if (imported := ImportLine.of(line))}
        imports = {at: imported for at, imported in imports.items() if isinstance(imported.node, cst.ImportFrom)}
        module = imports[at].module
        same_module = (other for other, imported in imports.items() if imported.is_plain and imported.module == module)
        target = next(same_module, at)
        others = [] if target == at else imports[target].names
        body[target] = body[target].with_changes(body=[statement(module, [*others, self.original])])
        derived = _derived(self.name, self.original, "pass", blank_lines=1)
        body.insert(max(imports) + 1, derived)
        if target != at:
            del body[at]
        return block.with_changes(body=body)


def _derived(name: str, base: str, body: str, blank_lines: int) -> cst.BaseStatement:
    statement = cst.parse_statement(f"class {name}({LAYER_CLASS}, {base}):\n    {body}\n")
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * blank_lines)
