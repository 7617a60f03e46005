"""The edit that imports a name, usually GradientCheckpointingLayer, in the style and order of the file's own imports.

libcst's AddImportsVisitor writes relative imports twice or makes them absolute, so the line is made here.
"""

from __future__ import annotations

import ast
import re
from collections import Counter

from ckpt_surgery.codemods.facts.file_facts import FileFacts, Import
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.tree.classes import GCL

_MODULE = "modeling_layers"
_IMPORTS = re.compile(r"^[ \t]*(?:from\s+\S+\s+)?import\s+(?:\([^)]*\)|[^\n]*)", re.M)
_CORE = re.compile(r"^(\.{2,})(?!models\b)\w+")


def import_edit(path: str, facts: FileFacts, source: SourceText, width: int) -> Edit | None:
    """The edit that makes the name known in a file, or None where it is known already."""
    top = [item for item in facts.imports if not item.guard]
    if any(item.name == GCL for item in top):
        return None
    # An import below the first class comes too late for it.
    first = min((cls.first_line for cls in facts.classes), default=len(source.text))
    early = [item for item in top if item.span.line < first]
    return added_import(path, source, early, _module(path, early), GCL, width)


def added_import(path: str, source: SourceText, imports: list[Import], module: str, name: str, width: int) -> Edit:
    """The edit that imports a name that none of these imports has, among them and as deep as they are."""
    for item in imports:
        names = [other for other in imports if other.span == item.span]
        if item.module == module and all(other.name == other.original for other in names):
            return _grow(path, source, item, [other.original for other in names], name, width)
    return _insert(path, source, module, name, imports)


def _module(path: str, imports: list[Import]) -> str:
    """`...modeling_layers` where the file reaches transformers' core by dots, the absolute name elsewhere."""
    dots = [match.group(1) for item in imports if (match := _CORE.match(item.module)) and "models" not in item.module]
    core = [prefix for prefix in dots if len(prefix) >= 3]
    parts = re.split(r"[/\\]", path)
    if core and "models" in parts:
        return max(core, key=len) + _MODULE
    return f"transformers.{_MODULE}"


def _grow(path: str, source: SourceText, item: Import, names: list[str], name: str, width: int) -> Edit:
    """Add the name to an import statement that names other things of the same module."""
    start, end = source.range(item.span)
    text = source.text[start:end]
    if "#" in text:
        return _one_more_line(path, source, start, end, name)
    below = source.newline + source.indent(start)
    return Edit(path, start, end, _statement(item.module, [*names, name], below, width, "(" in text))


def _statement(module: str, names: list[str], below: str, width: int, exploded: bool) -> str:
    """An import statement as the formatter writes it: one line, or one name a line; `below` begins a new line."""
    ordered = sorted(names, key=by_type)
    line = f"from {module} import {', '.join(ordered)}"
    if len(below.lstrip("\r\n") + line) <= width and not exploded:
        return line
    body = "".join(f"{below}    {name}," for name in ordered)
    return f"from {module} import ({body}{below})"


def _one_more_line(path: str, source: SourceText, start: int, end: int, name: str) -> Edit:
    """The name on a line of its own inside the parentheses: the comments there stay with their names."""
    offset = start
    for line in source.text[start:end].splitlines(keepends=True):
        there = re.match(r"\s+(\w+)", line)
        if (there and by_type(there.group(1)) > by_type(name)) or line.lstrip().startswith(")"):
            break
        offset += len(line)
    return Edit(path, offset, offset, f"{source.indent(start)}    {name},{source.newline}")


def by_type(name: str) -> tuple[int, str]:
    """Isort's order: constants, classes, the rest."""
    if name.isupper():
        return (0, name)
    return (1, name) if name[:1].isupper() else (2, name)


def _key(module: str) -> tuple[int, int, str]:
    """Isort's order of `from` imports: absolute first, then relative ones from the furthest to the closest."""
    dots = len(module) - len(module.lstrip("."))
    return (1 if dots else 0, -dots, module.lower())


def _insert(path: str, source: SourceText, module: str, name: str, imports: list[Import]) -> Edit:
    """A line of its own, behind the last import that sorts before it."""
    relative = module.startswith(".")
    section = [
        item
        for item in imports
        if item.original and (item.module.startswith(".") if relative else item.module.split(".")[0] == "transformers")
    ]
    ours = (_key(module), by_type(name))
    before = [item for item in section if (_key(item.module), by_type(item.original)) < ours]
    line = f"from {module} import {name}"
    if before:
        last = max(before, key=lambda item: (_key(item.module), item.span.end_line))
        return _below_import(path, source, last, source.newline, line)
    if section:
        first = min(section, key=lambda item: item.span.line)
        start, _ = source.range(first.span)
        return Edit(path, start, start, line + source.newline + source.indent(start))
    plain = [item for item in imports if item.module != "__future__"] or imports
    if plain:
        return _below_import(path, source, max(plain, key=lambda item: item.span.end_line), source.newline * 2, line)
    return _first(path, source, line)


def _below_import(path: str, source: SourceText, item: Import, gap: str, line: str) -> Edit:
    start, end = source.range(item.span)
    end = source.line_end(end)
    return Edit(path, end, end, gap + source.indent(start) + line)


def _first(path: str, source: SourceText, line: str) -> Edit:
    """The file's first import: below its docstring, above everything else."""
    body = ast.parse(source.text).body
    below = 1 if ast.get_docstring(ast.Module(body, [])) is not None else 0
    if below < len(body):
        statement = body[below]
        decorators = getattr(statement, "decorator_list", [])
        start = source.offset(min([statement.lineno, *(decorator.lineno for decorator in decorators)]), 0)
        blank = 2 if isinstance(statement, ast.ClassDef | ast.FunctionDef) else 1
        return Edit(path, start, start, line + source.newline * (blank + 1))
    return Edit(path, len(source.text), len(source.text), source.newline + line + source.newline)


def unused_imports(path: str, facts: FileFacts, before: str, after: SourceText, width: int) -> list[Edit]:
    """The edits that drop imported names which only the removed text used (`partial`, mostly)."""
    edits: list[Edit] = []
    then, now = _words(before), _words(after.text)
    for span in dict.fromkeys(item.span for item in facts.imports if not item.guard and item.module != "__future__"):
        items = [item for item in facts.imports if item.span == span]
        start, end = after.range(span)
        text = after.text[start:end]
        gone = [item for item in items if then[item.name] and not now[item.name]]
        aliased = any(item.original not in ("", item.name) for item in items)
        if not gone or aliased or (len(items) > 1 and not items[0].original):
            continue
        low, high = after.line_start(start), after.line_end(end)
        if after.text[low:high] != text or "#" in text:
            continue  # something else stands on these lines
        kept = [item.original for item in items if item not in gone]
        if kept:
            edits.append(Edit(path, start, end, _statement(items[0].module, kept, after.newline, width, False)))
        else:
            edits.append(Edit(path, low, _below(after, low, high), ""))
    return edits


def _below(source: SourceText, start: int, end: int) -> int:
    """Where the text goes on behind lines that are taken out: blank lines around them become one group."""
    end = min(end + len(source.newline), len(source.text))
    blank_above = start == 0 or not source.text[source.line_start(start - 1) : start].strip()
    while blank_above and end < len(source.text) and not source.text[end : source.line_end(end)].strip():
        end = min(source.line_end(end) + len(source.newline), len(source.text))
    return end


def _words(text: str) -> Counter[str]:
    """How often each word stands in a text outside its import statements."""
    return Counter(re.findall(r"[^\W\d]\w*", _IMPORTS.sub("", text)))
