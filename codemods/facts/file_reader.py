"""Turn a file's syntax into its `FileFacts`: imports, classes, and what is bound to them at module level."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckpt_surgery.codemods.facts.builds import LAYER_ENDINGS, Builder
from ckpt_surgery.codemods.facts.cache_flow import with_cache_flow
from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact
from ckpt_surgery.codemods.facts.file_facts import (
    Build,
    Class,
    FileFacts,
    ForwardSignature,
    Import,
    Maker,
    Method,
    Parameter,
    ParameterKind,
)
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax, methods_of, own_statements
from ckpt_surgery.codemods.facts.method_reader import MethodReader
from ckpt_surgery.codemods.facts.module_flow import accessors
from ckpt_surgery.codemods.facts.syntax import (
    Span,
    assigned_names,
    dotted,
    first_line_of,
    imported_names,
    last_name,
    span_of,
)
from ckpt_surgery.model_patches.release_names import CLAIM, FLAG, KEEPS_CACHE, LAYER_CLASS

_FLAGS = frozenset({CLAIM, "_no_split_modules", KEEPS_CACHE, FLAG, "model_type", "config_class", "config"})
_ADDS = ("setattr", "add_module", ".append", ".extend", ".insert")
_ASSIGNMENT = re.compile(r"self\.\w+(?:\[[^\n]*\])*(?:\s*:[^=\n]+)?[\s\\]*\+?=(?!=)")
_RETURNS = re.compile(r"return\s+(?:\w+$|self\.\w+$|[\w.\[]*[A-Z]|self\.\w+[\[.(]|.*\b(?:if|or)\b)", re.M)
"""Statements that may return modules. A pattern that begins with a literal word is several times as fast."""
_LOOP = re.compile(r"for .+ in .*")
_PASSED = re.compile(r"\(self\.[a-z_]+, ")
_FUNCTION = re.compile(r"(?<![\w.])(?!isinstance|hasattr|setattr|zip)[a-z_]\w*$")
_MAPPINGS = ("Output(", "dict(", "{", "[")
"""A forward without any of these returns neither a dict nor a list."""
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try)
_NO_GRADIENT = re.compile(r"key|value|state\b|present|past|cache|attn|attention_w|weight|prob|logit|None")
"""Parts of the names of returned values without gradient."""
_NOT_MODULES = ("torch.", "math.", "np.", "config.", "F.")
_CLASS_VALUES = (ast.Call, ast.Dict, ast.IfExp, ast.Lambda, ast.List, ast.Name, ast.Tuple)
"""Values of names at module level that may hold or make classes."""
_COMMON = {f"nn.{name}" for name in ("Linear", "LayerNorm", "Dropout", "Embedding", "Identity", "Parameter", "Conv2d")}
"""Modules of torch that every model has and that tell nothing about it."""


def read_facts(
    file: FileSyntax, of_file: Sequence[FileFact[object]], of_class: Sequence[ClassFact[object]]
) -> FileFacts:
    """Read the facts of a file: those that every rule needs, and the given ones of `providers/`."""
    imports = tuple(
        Import(*imported, span_of(statement), guard)
        for statement, guard in file.statements
        for imported in imported_names(statement)
    )
    layers = {item.name for item in imports if item.name.endswith(LAYER_ENDINGS) and "modeling_" in item.module}
    layers |= {
        node.name
        for node in file.tree.body
        if isinstance(node, ast.ClassDef)
        and (node.name.endswith(LAYER_ENDINGS) or any(dotted(base).endswith(LAYER_CLASS) for base in node.bases))
    }
    reader = _ClassReader(file, layers, of_class)
    classes, values = list[Class](), list[tuple[str, Build]]()
    for statement, _ in file.statements:
        match statement:
            case ast.ClassDef():
                classes.append(reader.read(statement))
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if isinstance(
                value, _CLASS_VALUES
            ):
                built = Builder().value(value)
                if built.names_class():
                    values += [(name, built) for name in assigned_names(statement)[:1]]
    return FileFacts(
        imports=imports,
        classes=tuple(classes),
        values=tuple(values),
        functions=tuple(function.name for function in file.functions),
        provided=_provided([fact for fact in of_file if fact.may_be_in(file.source)], file),
    )


def _provided(facts: Iterable[FileFact[object]] | Iterable[ClassFact[object]], *subject: Any) -> Mapping[str, object]:
    read = ((fact, fact.read(*subject)) for fact in facts)
    return {fact.name: value for fact, value in read if value != fact.nothing}


def maker_of(function: ast.FunctionDef) -> Maker | None:
    """Return a module-level function as a maker; None if it does not return modules."""
    builder = Builder.of(function)
    is_maker = any(built.names_class() for built in builder.made)
    return Maker(function.name, _params(function), Build.either(builder.made)) if is_maker else None


class _ClassReader:
    """Reads the classes of one file. `layers` are the names in it that may be layers."""

    def __init__(self, file: FileSyntax, layers: set[str], facts: Sequence[ClassFact[object]]) -> None:
        self._file = file
        self._layers = layers
        self._facts = [fact for fact in facts if not fact.signs or file.mentions(*fact.signs)]
        self._set = {owner for owner, _, _ in file.set_attributes}
        """The classes of which the module sets attributes."""

    def read(self, node: ast.ClassDef) -> Class:
        flags: list[tuple[str, str]] = []
        class_values: list[tuple[str, Build]] = []
        builder = Builder()
        for statement in own_statements(node):
            match statement:
                case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                    for name in assigned_names(statement)[:1]:
                        if name in _FLAGS:
                            flags.append((name, ast.unparse(value)))
                        elif isinstance(value, ast.Name | ast.Dict | ast.IfExp):
                            class_values.append((name, builder.value(value)))
        text, facts = self._file.text(node), self._facts
        if node.name not in self._set:
            facts = [fact for fact in facts if not fact.signs or any(sign in text for sign in fact.signs)]
        functions = methods_of(node)
        makers = list(self._makers(functions, builder))
        attributes = [(name, built) for name, all_ in builder.attributes.items() for built in all_ if _useful(built)]
        readers = self._readers(node, functions, attributes)
        forward = next((function for function in reversed(functions) if function.name == "forward"), None)
        return Class(
            name=node.name,
            span=span_of(node),
            header=_header(node),
            bases=tuple(dotted(base) or ast.unparse(base) for base in node.bases),
            base_spans=tuple(map(span_of, node.bases)),
            first_line=first_line_of(node),
            flags=tuple(flags),
            class_values=tuple(class_values),
            attributes=tuple(attributes),
            learned=builder.learned(functions),
            makers=tuple(makers),
            forward=_forward(forward, self._file.text(forward)) if forward else None,
            methods=tuple(
                Method(node.name, first_line_of(node), node.end_lineno or node.lineno) for node in functions
            ),
            calls=tuple(call for reader in readers for call in reader.calls.values()),
            inlines=tuple(inline for reader in readers for inline in reader.inlines.values()),
            handed_on=tuple(handed for reader in readers for handed in reader.handed_on),
            provided=_provided(facts, node, self._file),
        )

    def _makers(self, functions: Iterable[ast.FunctionDef], builder: Builder) -> Iterator[Maker]:
        """Yield the methods that return modules, and add the attributes that methods set to `builder`."""
        for function in functions:
            text = self._file.text(function) if function.name != "forward" else ""
            may_make = any(word in text for word in _ADDS) or _ASSIGNMENT.search(text) or _RETURNS.search(text)
            if function.name == "__init__" or may_make:
                own = Builder.of(function, builder.attributes)
                returned = [built for built in own.made if _useful(built)]
                if returned and function.name != "__init__":
                    yield Maker(function.name, _params(function), Build.either(returned))

    def _readers(
        self, node: ast.ClassDef, functions: list[ast.FunctionDef], attributes: list[tuple[str, Build]]
    ) -> list[MethodReader]:
        direct = frozenset(
            name
            for name, built in attributes
            if any(part in self._layers for part in built.class_names()) or name.startswith("<")
        )
        own = [f"self.{name}(" for name in direct]
        if not own and not _may_call_blocks(self._file.text(node)):
            return []
        returned = accessors(functions)
        names = ["checkpoint", *self._file.aliases, *(name.rpartition(".")[2] for name in self._file.helpers.names)]
        readers: list[MethodReader] = []
        for function in functions:
            text = self._file.text(function)
            if function.name == "__init__" or not (_may_call_blocks(text) or any(call in text for call in own)):
                continue
            may_checkpoint = any(name in text for name in names)
            reader = MethodReader(function, self._file, direct, returned, may_checkpoint=may_checkpoint)
            reader.read()
            if reader.calls and "cache" in text:
                reader.calls = {call.span: call for call in with_cache_flow(function, reader.calls.values())}
            readers.append(reader)
        return readers


def _header(node: ast.ClassDef) -> Span:
    """Return the span from `class` to the end of the last base, or of the name if there is none."""
    last = [*node.bases, *(keyword.value for keyword in node.keywords)]
    if last:
        return Span(node.lineno, node.col_offset, last[-1].end_lineno or 0, last[-1].end_col_offset or 0)
    return Span(node.lineno, node.col_offset, node.lineno, node.col_offset + len(f"class {node.name}".encode()))


def _may_call_blocks(text: str) -> bool:
    """Tell whether a method's text is worth reading: most methods have no loop, no index and no checkpoint."""
    if "checkpoint" in text or "](" in text or "getattr(" in text:
        return True
    for loop in _LOOP.finditer(text):
        before = text[text.rfind("\n", 0, loop.start()) + 1 : loop.start()]
        if before.isspace() or "self." in loop.group():
            return True
    # a stack that is passed whole to a function
    callees = (text[text.rfind("\n", 0, stack.start()) + 1 : stack.start()] for stack in _PASSED.finditer(text))
    return any(map(_FUNCTION.search, callees))


def _forward(function: ast.FunctionDef, text: str) -> ForwardSignature:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*padding, *arguments.defaults][-len(positional) :] if positional else []
    params: list[Parameter] = []

    def add(node: ast.arg, kind: ParameterKind, default: ast.expr | None) -> None:
        text = ast.unparse(default) if default is not None else None
        annotation, end = ast.unparse(node.annotation) if node.annotation else "", default or node
        span = Span(node.lineno, node.col_offset, end.end_lineno or 0, end.end_col_offset or 0)
        params.append(Parameter(node.arg, kind, text, annotation, span))

    for node, default in zip(positional, defaults, strict=True):
        add(node, "positional", default)
    if arguments.vararg:
        add(arguments.vararg, "*", None)
    for node, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        add(node, "keyword", default)
    if arguments.kwarg:
        add(arguments.kwarg, "**", None)
    nested, mapping = _returned(function.body)
    returns_mapping = mapping and any(word in text for word in _MAPPINGS)
    return ForwardSignature(span_of(function), tuple(params), nested, returns_mapping)


def _params(function: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(
        argument.arg for argument in (*function.args.posonlyargs, *function.args.args) if argument.arg != "self"
    )


def _useful(built: Build) -> bool:
    """Tell whether a build can lead to blocks: it names a class, a maker or another attribute."""
    if built.kind in ("maker", "attribute"):
        return True
    if built.is_sequential() and not built.items:
        return True  # it is filled later
    if built.kind == "class":
        return built.name not in _COMMON and not built.name.startswith(_NOT_MODULES)
    return any(map(_useful, built.items))


def _returned(statements: list[ast.stmt]) -> tuple[tuple[Span, ...], bool]:
    """Return the statements that put a tuple of tensors in a returned tuple, and whether a dict or output is returned.

    Values are followed through one name.
    """
    values: dict[str, list[ast.stmt]] = {}
    mappings: set[str] = set()
    returns: list[ast.Return] = []
    returns_mapping = False
    for statement in _flat(statements):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if _is_nested(value):
                    values.setdefault(name, []).append(statement)
                if _is_mapping(value, mappings):
                    mappings.add(name)
            case ast.Return(value=ast.expr() as value):
                returns.append(statement)
                returns_mapping = returns_mapping or _is_mapping(value, mappings)
    nested: list[ast.stmt] = []
    for returned in returns:
        if returned.value and _is_nested(returned.value):
            nested.append(returned)
        elif isinstance(returned.value, ast.Name):
            nested += values.pop(returned.value.id, ())
    return tuple(map(span_of, nested)), returns_mapping


def _is_mapping(value: ast.expr, names: set[str]) -> bool:
    match value:
        case ast.Call(func=function):
            name = last_name(function)
            return name == "dict" or name.endswith("Output")
        case ast.Name(id=name):
            return name in names
    return isinstance(value, ast.Dict | ast.DictComp | ast.List)


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        if isinstance(statement, _COMPOUND):
            for name in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, name, ()))


def _is_nested(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_nested(value.left) or _is_nested(value.right)
    return isinstance(value, ast.Tuple) and any(
        isinstance(item, ast.Tuple | ast.List)
        and any(not _NO_GRADIENT.search(ast.unparse(inner)) for inner in item.elts)
        for item in value.elts
    )
