"""Add and remove imports, in the style and order of the file's own.

libcst's AddImportsVisitor writes relative imports twice or makes them absolute, hence this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from sys import maxsize

import libcst as cst

from ckpt_surgery.codemods.edits import paths

_BLANK_LINE = cst.EmptyLine(indent=False)


@dataclass(frozen=True, slots=True)
class ImportLine:
    """An import statement that has a line of its own."""

    node: cst.Import | cst.ImportFrom

    @classmethod
    def of(cls, line: cst.CSTNode) -> ImportLine | None:
        """Return the import that a line consists of; None for any other line."""
        parts = line.body if isinstance(line, cst.SimpleStatementLine) else ()
        return cls(parts[0]) if len(parts) == 1 and isinstance(parts[0], cst.Import | cst.ImportFrom) else None

    @property
    def module(self) -> str:
        """The module that it names, with its leading dots."""
        if isinstance(self.node, cst.Import):
            return paths.code_of(self.node.names[0].name)
        return "." * len(self.node.relative) + (paths.code_of(self.node.module) if self.node.module else "")

    @property
    def _aliases(self) -> Sequence[cst.ImportAlias]:
        return () if isinstance(self.node.names, cst.ImportStar) else self.node.names

    @property
    def names(self) -> list[str]:
        """The imported names, as they are called in their module."""
        return [alias.evaluated_name for alias in self._aliases]

    @property
    def bound(self) -> set[str]:
        """The names that the statement binds."""
        return {alias.evaluated_alias or alias.evaluated_name.partition(".")[0] for alias in self._aliases}

    @property
    def is_plain(self) -> bool:
        """Whether it is `from module import names`, without a star or `as`."""
        aliases = self._aliases
        return isinstance(self.node, cst.ImportFrom) and len(aliases) > 0 and not any(each.asname for each in aliases)


@dataclass
class AddImport(paths.ModuleTransformer):
    """Imports a name: in a comment-free statement that imports from the module already, or in a new one.

    Nothing changes if that level imports the name already. Imports below the first class do not count, since they come
    too late for it. With `guard`, the test of an `if` at module level, the import goes into that `if`.
    """

    module: str
    name: str
    width: int = field(kw_only=True)
    guard: str = field(default="", kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        guard, step = "".join(self.guard.split()), tree.default_indent
        if not guard:
            has_docstring = tree.get_docstring() is not None
            return tree.with_changes(body=self._with_import(tree.body, step, self.width, top=int(has_docstring)))
        for line in tree.body:
            block = line.body if isinstance(line, cst.If) and paths.squeezed(line.test) == guard else None
            if isinstance(block, cst.IndentedBlock):
                body = self._with_import(block.body, step, self.width - paths.columns(step))
                return paths.replaced((tree, line), block, block.with_changes(body=body))
        raise paths.PlaceError(f"there is no `if {guard}:` at module level")

    def _with_import(
        self, lines: Sequence[cst.BaseStatement], step: str, width: int, *, top: int = 0
    ) -> Sequence[cst.BaseStatement]:
        """Return these statements with the import; without any imports, it goes to the index `top`."""
        imports = {at: imported for at, line in enumerate(lines) if (imported := ImportLine.of(line))}
        if any(self.name in imported.bound for imported in imports.values()):
            return lines
        first = next((at for at, line in enumerate(lines) if isinstance(line, cst.ClassDef)), len(lines))
        early = {at: imported for at, imported in imports.items() if at < first}
        for at, imported in early.items():
            node = imported.node
            fits = imported.is_plain and imported.module == self.module
            if fits and isinstance(node, cst.ImportFrom) and "#" not in paths.code_of(node):
                exploded = node.lpar is not None
                grown = statement(self.module, [*imported.names, self.name], width, step, exploded=exploded)
                return [*lines[:at], lines[at].with_changes(body=[grown]), *lines[at + 1 :]]
        new = cst.SimpleStatementLine([statement(self.module, [self.name], width, step)])
        package = self.module.partition(".")[0]  # empty for dots
        froms = [(at, imported) for at, imported in early.items() if isinstance(imported.node, cst.ImportFrom)]
        same_package = [(at, imported) for at, imported in froms if imported.module.partition(".")[0] == package]
        key = (_key(self.module), by_type(self.name))
        keys = [(at, _key(each.module), min(map(by_type, each.names), default=(0, ""))) for at, each in same_package]
        before = [(module, at) for at, module, name in keys if (module, name) < key]
        above: list[cst.EmptyLine] = []
        if before:
            at = max(before)[1] + 1
        elif same_package:
            at = same_package[0][0]
            above = paths.leading_lines(lines[at])
        elif early:
            at = max([at for at, imported in early.items() if imported.module != "__future__"] or early) + 1
            above = [_BLANK_LINE]
        else:
            at, above = top, [_BLANK_LINE] * top
        rest = list(lines[at:])
        if same_package and not before:
            rest[0] = rest[0].with_changes(leading_lines=())
        return [*lines[:at], new.with_changes(leading_lines=above), *rest]


@dataclass
class RemoveImports(paths.ModuleTransformer):
    """Removes names from the import statements at module level, and statements that import nothing else.

    Statements with comments, aliases, or other statements on their lines stay as they are.
    """

    names: Collection[str]
    width: int = field(kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        body: list[cst.BaseStatement] = []
        above: list[cst.EmptyLine] | None = None  # the lines above the first of adjacent removed statements
        for line in tree.body:
            new = self._without(line, tree.default_indent)
            if new is None:
                above = paths.leading_lines(line) if above is None else above
                continue
            if above is not None:  # blank lines around removed statements become one group
                own = paths.leading_lines(new)
                while own and own[0].comment is None and (not body or any(not item.comment for item in above)):
                    own.pop(0)
                new = new.with_changes(leading_lines=[*above, *own])
                above = None
            body.append(new)
        return tree.with_changes(body=body, footer=[*(above or []), *tree.footer])

    def _without(self, line: cst.BaseStatement, step: str) -> cst.BaseStatement | None:
        """Return a statement without the unused names; None if nothing of it is left."""
        imported = ImportLine.of(line)
        if (
            imported is None
            or not imported.bound & set(self.names)
            or "#" in paths.code_of(line.with_changes(leading_lines=()))
        ):
            return line
        if isinstance(imported.node, cst.Import):
            return None if len(imported.names) == 1 else line
        if not imported.is_plain:
            return line
        kept = [name for name in imported.names if name not in self.names]
        return line.with_changes(body=[statement(imported.module, kept, self.width, step)]) if kept else None


def statement(
    module: str, names: Iterable[str], width: int = maxsize, step: str = "", *, exploded: bool = False
) -> cst.ImportFrom:
    """Return an import statement as the formatter writes it: one line, or one name a line, indented by `step`."""
    ordered = sorted(set(names), key=by_type)
    text = f"from {module} import {', '.join(ordered)}"
    if exploded or len(text) > width:
        text = f"from {module} import (\n" + "".join(f"{step}{name},\n" for name in ordered) + ")"
    line = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
    return cst.ensure_type(line.body[0], cst.ImportFrom)


def by_type(name: str) -> tuple[int, str]:
    """Return isort's key for a name: constants, classes, the rest."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def _key(module: str) -> tuple[bool, int, str]:
    """Return isort's key for a `from` import: absolute first, then relative ones from the furthest to the closest."""
    dots = len(module) - len(module.lstrip("."))
    return (dots > 0, -dots, module.lower())
