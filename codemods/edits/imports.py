"""Import statements in the style and order of the file's own.

libcst's AddImportsVisitor writes relative imports twice or makes them absolute, hence these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias, TypeVar

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import (
    ModuleTransformer,
    PlaceError,
    code_of,
    columns,
    leading_lines,
    squeezed,
)

_Holder = TypeVar("_Holder", cst.Module, cst.IndentedBlock)
_Line: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.BaseStatement
"""What modules and blocks hold."""


class AddImport(ModuleTransformer):
    """Imports a name from a module: a statement that imports others of the module grows, or a new one is put in place.

    Where that level imports the name already, nothing changes. Imports below the first class come too late for it and
    do not count. `guard` is the test of an `if` at module level, without white space, among whose imports it goes.
    """

    def __init__(self, module: str, name: str, *, width: int, guard: str = "") -> None:
        super().__init__()
        self._module, self._name, self._width, self._step = module, name, width, ""
        self._guard = "".join(guard.split())

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module that imports the name.

        Raises:
            PlaceError: there is no such guard.
        """
        self._step = tree.default_indent
        if not self._guard:
            return self._with_import(tree)
        guards = [node for node in tree.body if isinstance(node, cst.If) and squeezed(node.test) == self._guard]
        holder = next((node.body for node in guards if isinstance(node.body, cst.IndentedBlock)), None)
        if holder is None:
            raise PlaceError(f"there is no `if {self._guard}:` at module level")
        self._width -= columns(tree.default_indent)
        return cst.ensure_type(tree.deep_replace(holder, self._with_import(holder)), cst.Module)

    def _with_import(self, holder: _Holder) -> _Holder:
        body: list[_Line] = list(holder.body)
        if any(self._name in _bound(imported) for line in body for imported in _imports(line)):
            return holder
        first = next((at for at, line in enumerate(body) if isinstance(line, cst.ClassDef)), len(body))
        early = [(at, imported) for at, line in enumerate(body[:first]) for imported in _imports(line)]
        for at, imported in early:
            if isinstance(imported, cst.ImportFrom) and imports_plainly(imported, self._module):
                line = cst.ensure_type(body[at], cst.SimpleStatementLine)
                body[at] = cst.ensure_type(line.deep_replace(imported, self._grown(imported)), cst.SimpleStatementLine)
                return holder.with_changes(body=body)
        return holder.with_changes(body=self._inserted(_has_docstring(holder), body, early))

    def _grown(self, imported: cst.ImportFrom) -> cst.ImportFrom:
        """The statement with the name among its own."""
        if "#" in code_of(imported):
            return _one_more_line(imported, self._name, self._step)
        names = [*names_of(imported), self._name]
        return _statement(self._module, names, self._width, self._step, exploded=imported.lpar is not None)

    def _inserted(
        self, has_docstring: bool, body: list[_Line], early: Sequence[tuple[int, cst.Import | cst.ImportFrom]]
    ) -> list[_Line]:
        """The lines with one more, behind the last import that sorts before it."""
        line = cst.SimpleStatementLine([_statement(self._module, [self._name], self._width, self._step)])
        section = [(at, node) for at, node in early if isinstance(node, cst.ImportFrom) and self._same_section(node)]
        ours = (_key(self._module), by_type(self._name))
        before = [(at, node) for at, node in section if _first_key(node) < ours]
        if before:
            at = max(before, key=lambda item: (_key(module_of(item[1])), item[0]))[0] + 1
        elif section:
            at = min(at for at, _ in section)
            following = cst.ensure_type(body[at], cst.SimpleStatementLine)
            line = line.with_changes(leading_lines=following.leading_lines)
            body[at] = following.with_changes(leading_lines=())
        elif early:
            plain = [at for at, node in early if module_of(node) != "__future__"]
            at = max(plain or [at for at, _ in early]) + 1
            line = line.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        else:
            return _as_first(line, int(has_docstring), body)
        return [*body[:at], line, *body[at:]]

    def _same_section(self, imported: cst.ImportFrom) -> bool:
        module = module_of(imported)
        if self._module.startswith("."):
            return module.startswith(".")
        return module.split(".")[0] == self._module.split(".")[0]


class RemoveImports(ModuleTransformer):
    """Takes names out of the import statements at module level; a statement that imports nothing else goes.

    Statements with comments, aliases, or other statements on their lines stay as they are.
    """

    def __init__(self, names: Collection[str], *, width: int) -> None:
        super().__init__()
        self._unused = frozenset(names)
        self._width, self._step = width, ""

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module without these imports."""
        self._step = tree.default_indent
        body: list[_Line] = []
        pending: list[cst.EmptyLine] | None = None
        for line in tree.body:
            new = self._without(line)
            if new is None:
                lines = list(cst.ensure_type(line, cst.SimpleStatementLine).leading_lines)
                pending = lines if pending is None else pending
                continue
            if pending is not None:
                new = new.with_changes(leading_lines=self._closed_up(pending, new, first=not body))
                pending = None
            body.append(new)
        footer = [*(pending or []), *tree.footer]
        return tree.with_changes(body=body, footer=footer)

    def _closed_up(self, above: list[cst.EmptyLine], line: _Line, first: bool) -> list[cst.EmptyLine]:
        """The lines above a statement that moves up: blank lines around what is gone become one group."""
        own = leading_lines(line)
        if first or any(not item.comment for item in above):
            while own and own[0].comment is None:
                own.pop(0)
        return [*above, *own]

    def _without(self, line: _Line) -> _Line | None:
        """A statement without the unused names; None where nothing of it is left."""
        imports = list(_imports(line))
        if not isinstance(line, cst.SimpleStatementLine) or len(imports) != 1 or len(line.body) != 1:
            return line
        (imported,) = imports
        if isinstance(imported.names, cst.ImportStar) or not self._unused & set(_bound(imported)):
            return line
        if "#" in code_of(line.with_changes(leading_lines=())):
            return line
        if isinstance(imported, cst.Import):
            return None if len(imported.names) == 1 else line
        if any(alias.asname for alias in imported.names):
            return line
        kept = [name for name in names_of(imported) if name not in self._unused]
        if not kept:
            return None
        return line.with_changes(body=[_statement(module_of(imported), kept, self._width, self._step)])


def _imports(line: _Line) -> Iterator[cst.Import | cst.ImportFrom]:
    if isinstance(line, cst.SimpleStatementLine):
        yield from (part for part in line.body if isinstance(part, cst.Import | cst.ImportFrom))


def _as_first(line: cst.SimpleStatementLine, at: int, body: list[_Line]) -> list[_Line]:
    """The file's first import: below its docstring, above everything else."""
    if at == len(body):
        return [*body, line.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]
    following = body[at]
    lines = leading_lines(following)
    above = [empty for empty in lines if empty.comment is None] if at else []
    gap = [cst.EmptyLine(indent=False)] * (2 if isinstance(following, cst.ClassDef | cst.FunctionDef) else 1)
    moved = following.with_changes(leading_lines=[*gap, *lines[len(above) :]])
    return [*body[:at], line.with_changes(leading_lines=above), moved, *body[at + 1 :]]


def _has_docstring(holder: cst.Module | cst.IndentedBlock) -> bool:
    return isinstance(holder, cst.Module) and holder.get_docstring() is not None


def module_of(imported: cst.Import | cst.ImportFrom) -> str:
    """The module that an import statement names, with its leading dots."""
    if isinstance(imported, cst.Import):
        return code_of(imported.names[0].name)
    return "." * len(imported.relative) + (code_of(imported.module) if imported.module else "")


def _bound(imported: cst.Import | cst.ImportFrom) -> list[str]:
    """The names that an import statement makes known."""
    if isinstance(imported.names, cst.ImportStar):
        return []
    return [alias.evaluated_alias or alias.evaluated_name.partition(".")[0] for alias in imported.names]


def imports_plainly(imported: cst.ImportFrom, module: str) -> bool:
    """Whether a statement imports names from a module, each as it is."""
    if isinstance(imported.names, cst.ImportStar) or module_of(imported) != module:
        return False
    return all(alias.asname is None for alias in imported.names)


def names_of(imported: cst.ImportFrom) -> list[str]:
    """The names that are imported, as their module has them."""
    return [] if isinstance(imported.names, cst.ImportStar) else [alias.evaluated_name for alias in imported.names]


def _statement(module: str, names: Sequence[str], width: int, step: str, *, exploded: bool = False) -> cst.ImportFrom:
    """An import statement as the formatter writes it: one line, or one name a line, indented by `step`."""
    ordered = sorted(names, key=by_type)
    line = plain_statement(module, ordered)
    if not exploded and len(code_of(line)) <= width:
        return line
    return _parsed(f"from {module} import (\n" + "".join(f"{step}{name},\n" for name in ordered) + ")")


def plain_statement(module: str, names: Sequence[str]) -> cst.ImportFrom:
    """`from module import names` on one line."""
    return _parsed(f"from {module} import {', '.join(names)}")


def _parsed(text: str) -> cst.ImportFrom:
    statement = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
    return cst.ensure_type(statement.body[0], cst.ImportFrom)


def _one_more_line(imported: cst.ImportFrom, name: str, step: str) -> cst.ImportFrom:
    """The name on a line of its own inside the parentheses: the comments there stay with their names."""
    aliases = [] if isinstance(imported.names, cst.ImportStar) else list(imported.names)
    line = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(step))
    at = next((at for at, alias in enumerate(aliases) if by_type(alias.evaluated_name) > by_type(name)), len(aliases))
    new = cst.ImportAlias(cst.Name(name), comma=cst.Comma(whitespace_after=line))
    if at == len(aliases):
        last = aliases[-1]
        ending = last.comma if isinstance(last.comma, cst.Comma) else cst.Comma(whitespace_after=line)
        space = ending.whitespace_after
        inner = (
            space.with_changes(last_line=cst.SimpleWhitespace(step))
            if isinstance(space, cst.ParenthesizedWhitespace)
            else line
        )
        aliases[-1] = last.with_changes(comma=ending.with_changes(whitespace_after=inner))
        closing = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(""))
        new = new.with_changes(comma=cst.Comma(whitespace_after=closing))
    aliases.insert(at, new)
    return imported.with_changes(names=aliases)


def by_type(name: str) -> tuple[int, str]:
    """Isort's order: constants, classes, the rest."""
    if name.isupper():
        return (0, name)
    return (1, name) if name[:1].isupper() else (2, name)


def _key(module: str) -> tuple[int, int, str]:
    """Isort's order of `from` imports: absolute first, then relative ones from the furthest to the closest."""
    dots = len(module) - len(module.lstrip("."))
    return (1 if dots else 0, -dots, module.lower())


def _first_key(imported: cst.ImportFrom) -> tuple[tuple[int, int, str], tuple[int, str]]:
    return _key(module_of(imported)), min(map(by_type, names_of(imported)), default=(0, ""))
