"""One file's syntax tree to its `FileFacts`: imports, classes, and what is bound to them at module level."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ckpt_surgery.codemods.facts.builds import Builder, is_learned
from ckpt_surgery.codemods.facts.cache_flow import with_cache_flow
from ckpt_surgery.codemods.facts.checkpoint_helpers import CheckpointHelpers, checkpoint_names
from ckpt_surgery.codemods.facts.checkpointed_functions import checkpointed_functions
from ckpt_surgery.codemods.facts.file_facts import (
    Build,
    Class,
    CopiedFrom,
    FileFacts,
    ForwardSignature,
    Import,
    Maker,
    Method,
    OwnSwitch,
    Parameter,
    ParameterKind,
)
from ckpt_surgery.codemods.facts.forward_patches import forward_patches
from ckpt_surgery.codemods.facts.method_reader import MethodReader, Wanted
from ckpt_surgery.codemods.facts.module_flow import accessors
from ckpt_surgery.codemods.facts.module_modes import may_evaluate
from ckpt_surgery.codemods.facts.old_switches import old_switch
from ckpt_surgery.codemods.facts.own_switches import SWITCHES, may_switch, own_switches
from ckpt_surgery.codemods.facts.returns import nested_returns, returns_mapping
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.facts.syntax import Span, dotted, span_of, text_of, walk
from ckpt_surgery.model_patches.release_names import CLAIM, FLAG, KEEPS_CACHE, LAYER_CLASS

_FLAGS = {
    CLAIM,
    "_no_split_modules",
    KEEPS_CACHE,
    FLAG,
    "model_type",
    "config_class",
    "config",
}
_COPIED = re.compile(r"^([ \t]*)#[ \t]*Copied from[ \t]+transformers\.(\S+)(?:[ \t]+with[ \t]+(.+?))?[ \t]*$")
_GENERATED = re.compile(r"automatically generated from (?:\S*/)?(modular_\w+\.py)")
_LOOP = re.compile(r"^[ \t]+for .+ in |\bfor .+ in .*self\.")
_HANDED = re.compile(r"(?<![\w.])(?!isinstance|hasattr|setattr|zip)[a-z_]\w*\(self\.[a-z_]+, ")
"""A stack that is handed to a function as a whole."""
_LAYER_ENDINGS = ("Layer", "Block", "Stage")
_NOT_MODULES = ("torch.", "math.", "np.", "config.", "F.")
_COMMON = {f"nn.{name}" for name in ("Linear", "LayerNorm", "Dropout", "Embedding", "Identity", "Parameter", "Conv2d")}
"""Torch's own modules, which are in every model and say nothing about it."""


class FileReader:
    """Reads one file: its imports, its classes, and the names bound to classes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = source.split("\n")
        self.imports: list[Import] = []
        self.classes: list[Class] = []
        self.makers: list[Maker] = []
        self.values: list[tuple[str, Build]] = []
        self.checkpoint_names = checkpoint_names(source)
        self.local_layers: set[str] = set()
        self.replaced: list[str] = []
        self.switched: list[tuple[str, OwnSwitch]] = []
        self.helpers = CheckpointHelpers(frozenset(self.checkpoint_names))
        self.aliases: frozenset[str] = frozenset()

    def facts(self, tree: ast.Module, script: ScriptFacts | None) -> FileFacts:
        """The facts of the file, given its tree and what it says as a training script."""
        names = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
        self.local_layers.update(name for name in names if name.endswith(_LAYER_ENDINGS))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        if "checkpoint" in self.source:
            self.helpers.read(function for function in functions if self.helpers.may_be_in(self._text(function)))
            self.aliases = self.helpers.aliases(tree.body)
        self._read(tree.body, guard="")
        generated = _GENERATED.search(self.source[:2000])
        return FileFacts(
            imports=tuple(self.imports),
            classes=tuple(map(self._with_switches, self.classes)),
            values=tuple(self.values),
            makers=tuple(self.makers),
            cleared=self._cleared(tree),
            generated_from=generated.group(1) if generated else "",
            copies=tuple(self._copies(tree)),
            functions=tuple(function.name for function in functions),
            checkpointers=tuple(sorted(self.helpers.functions)),
            replaced_forwards=tuple(self.replaced),
            checkpointed=checkpointed_functions(tree, self.source, self.checkpoint_names),
            forward_patches=forward_patches(tree, self.source),
            script=script,
        )

    def _read(self, statements: Iterable[ast.stmt], guard: str) -> None:
        for statement in statements:
            match statement:
                case ast.ImportFrom():
                    self._import_from(statement, guard)
                case ast.Import():
                    for alias in statement.names:
                        name = alias.asname or alias.name.partition(".")[0]
                        self.imports.append(Import(name, alias.name, "", span_of(statement), guard))
                case ast.ClassDef():
                    self.classes.append(self._class(statement, guard))
                case ast.FunctionDef():
                    self._maker(statement)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._value(name, value)
                case ast.Assign(targets=[ast.Attribute(value=owner, attr="forward") as target], value=value):
                    if dotted(owner) and ast.unparse(target) not in ast.unparse(value):
                        self.replaced.append(dotted(owner))
                case ast.Assign(targets=[ast.Attribute(value=owner, attr=attribute)]) if attribute in SWITCHES:
                    self.switched.append((dotted(owner), OwnSwitch(f"self.{attribute}", "")))
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._value(name, value)
                case ast.If(test=test, body=body, orelse=orelse):
                    text = ast.unparse(test)
                    self._read(body, text)
                    self._read(orelse, f"not {text}")
                case ast.Try(body=body, handlers=handlers, orelse=orelse):
                    self._read(body, "try")
                    for handler in handlers:
                        self._read(handler.body, "except")
                    self._read(orelse, "try")
                case ast.With(body=body):
                    self._read(body, guard)

    def _import_from(self, statement: ast.ImportFrom, guard: str) -> None:
        module = "." * statement.level + (statement.module or "")
        for alias in statement.names:
            name = alias.asname or alias.name
            self.imports.append(Import(name, module, alias.name, span_of(statement), guard))
            if name.endswith(_LAYER_ENDINGS) and "modeling_" in module:
                self.local_layers.add(name)

    def _value(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Dict | ast.Name | ast.IfExp | ast.List | ast.Tuple | ast.Call | ast.Lambda):
            built = Builder().value(value)
            if _holds_class(built):
                self.values.append((name, built))

    def _maker(self, function: ast.FunctionDef) -> None:
        builder = Builder(_given(function))
        builder.follow(function.body)
        if any(map(_holds_class, builder.made)):
            self.makers.append(Maker(function.name, _params(function), _choice(builder.made)))

    # -- classes

    def _with_switches(self, cls: Class) -> Class:
        """A class with the switches that the module gives it: `FooModel._set_gradient_checkpointing = switch`."""
        given = [switch for name, switch in self.switched if name == cls.name]
        return replace(cls, own_switches=(*cls.own_switches, *given)) if given else cls

    def _class(self, node: ast.ClassDef, guard: str) -> Class:
        bases = tuple(dotted(base) or ast.unparse(base) for base in node.bases)
        if any(base.endswith(LAYER_CLASS) for base in bases):
            self.local_layers.add(node.name)
        flags: list[tuple[str, str]] = []
        class_values: list[tuple[str, Build]] = []
        switches: list[OwnSwitch] = []
        makers: list[Maker] = []
        builder = Builder()
        functions = [inner for inner in _own(node.body) if isinstance(inner, ast.FunctionDef)]
        for statement in _own(node.body):
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    if name == "forward":
                        self.replaced.append(node.name)
                    if name in SWITCHES:
                        switches.append(OwnSwitch(f"self.{name}", ""))
                    if name in _FLAGS:
                        flags.append((name, ast.unparse(value)))
                    elif isinstance(value, ast.Name | ast.Dict | ast.IfExp):
                        class_values.append((name, builder.value(value)))
        forward = None
        for function in functions:
            if function.name == "forward":
                forward = _forward(function)
            else:
                own = Builder(_given(function))
                own.attributes = builder.attributes
                own.follow(function.body)
                returned = [built for built in own.made if _useful(built)]
                if returned and function.name != "__init__":
                    makers.append(Maker(function.name, _params(function), _choice(returned)))
        attributes = [(name, built) for name, all_ in builder.attributes.items() for built in all_ if _useful(built)]
        readers = self._readers(functions, attributes, bases)
        return Class(
            name=node.name,
            span=span_of(node),
            header=self._header(node),
            bases=bases,
            base_spans=tuple(map(span_of, node.bases)),
            first_line=_first_line(node),
            guard=guard,
            flags=tuple(flags),
            class_values=tuple(class_values),
            attributes=tuple(attributes),
            learned=_learned(builder, functions),
            makers=tuple(makers),
            forward=forward,
            methods=tuple(Method(node.name, _first_line(node), node.end_lineno or node.lineno) for node in functions),
            calls=tuple(call for reader in readers for call in reader.calls.values()),
            inlines=tuple(inline for reader in readers for inline in reader.inlines.values()),
            old_switch=old_switch(node),
            own_switches=(*switches, *own_switches(inner for inner in functions if may_switch(self._text(inner)))),
            handed_on=tuple(handed for reader in readers for handed in reader.handed_on),
            checkpointers=self._checkpointers(functions),
            decorators=tuple(name for function in functions for name in _decorators(function)),
            may_evaluate=may_evaluate(self._text(node)),
        )

    def _checkpointers(self, functions: list[ast.FunctionDef]) -> tuple[str, ...]:
        methods = [function for function in functions if self.helpers.may_be_in(self._text(function))]
        return tuple(dict.fromkeys(self.helpers.of_class(methods)))

    def _header(self, node: ast.ClassDef) -> Span:
        """From `class` to the end of the last base (or of the name, where there is none)."""
        last = [*node.bases, *(keyword.value for keyword in node.keywords)]
        if last:
            end_line, end_column = last[-1].end_lineno or node.lineno, last[-1].end_col_offset or 0
        else:
            end_line, end_column = node.lineno, node.col_offset + len("class ") + len(node.name.encode())
        return Span(node.lineno, node.col_offset, end_line, end_column)

    def _readers(
        self, functions: list[ast.FunctionDef], attributes: list[tuple[str, Build]], bases: tuple[str, ...]
    ) -> list[MethodReader]:
        direct = frozenset(
            name
            for name, built in attributes
            if any(part in self.local_layers for part in built.class_names()) or name.startswith("<")
        )
        wanted = re.compile(r"self\.(?:" + "|".join(map(re.escape, sorted(direct))) + r")\(") if direct else None
        returned = accessors(functions)
        readers: list[MethodReader] = []
        for function in functions:
            if function.name == "__init__":
                continue
            text = self._text(function)
            if _may_call_blocks(text) or (wanted and wanted.search(text)):
                may_checkpoint = "checkpoint" in text or any(alias in text for alias in self.aliases)
                wanted_here = Wanted(direct, self.helpers.names, self.aliases)
                reader = MethodReader(function.name, wanted_here, returned, may_checkpoint=may_checkpoint)
                reader.read(function)
                if reader.calls and "cache" in text:
                    reader.calls = {call.span: call for call in with_cache_flow(function, reader.calls.values())}
                readers.append(reader)
        return readers

    def _text(self, node: ast.stmt) -> str:
        return "\n".join(self.lines[node.lineno - 1 : node.end_lineno])

    # -- the rest of a file

    def _cleared(self, tree: ast.Module) -> tuple[str, ...] | None:
        """The keywords that this file's GradientCheckpointingLayer clears: `"past_key_values" in kwargs`."""
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == LAYER_CLASS:
                return tuple(_looked_up_in_kwargs(node))
        return None

    def _copies(self, tree: ast.Module) -> Iterator[CopiedFrom]:
        if "Copied from" not in self.source:
            return
        starts = dict(_objects(tree.body))
        for line, text in enumerate(self.lines, 1):
            match = _COPIED.match(text) if "Copied from" in text else None
            if match is None:
                continue
            below = line + 1
            while below <= len(self.lines) and self.lines[below - 1].lstrip().startswith("#"):
                below += 1
            span = starts.get(below)
            if span:
                yield CopiedFrom(line, match.group(2), match.group(3) or "", span)


def _decorators(function: ast.FunctionDef) -> Iterator[str]:
    """The names of what decorates a forward, as called or as they are."""
    if function.name in ("forward", "__call__"):
        for node in function.decorator_list:
            if name := dotted(node.func if isinstance(node, ast.Call) else node):
                yield name


def _first_line(node: ast.ClassDef | ast.FunctionDef) -> int:
    """The line of the first decorator, or of the definition where there is none."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _may_call_blocks(text: str) -> bool:
    """Whether a method's text is worth walking: most methods loop over nothing and index nothing."""
    if "checkpoint" in text or "](" in text or "getattr(" in text:
        return True
    if "(self." in text and _HANDED.search(text):
        return True
    return "for " in text and any(_LOOP.search(line) for line in text.split("\n") if "for " in line)


def _objects(statements: Iterable[ast.stmt]) -> Iterator[tuple[int, Span]]:
    """First line (decorators included) and place of every class and function, methods included."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            first = _first_line(statement)
            end = statement.end_lineno or statement.lineno
            yield first, Span(first, statement.col_offset, end, statement.end_col_offset or 0)
            if isinstance(statement, ast.ClassDef):
                yield from _objects(statement.body)
        elif isinstance(statement, ast.If):
            yield from _objects(statement.body)
            yield from _objects(statement.orelse)


def _own(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """A class body's statements, also those under an `if`."""
    for statement in statements:
        if isinstance(statement, ast.If):
            yield from _own(statement.body)
            yield from _own(statement.orelse)
        else:
            yield statement


def _forward(function: ast.FunctionDef) -> ForwardSignature:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*padding, *arguments.defaults][-len(positional) :] if positional else []
    params: list[Parameter] = []
    spans: list[Span] = []

    def add(node: ast.arg, kind: ParameterKind, default: ast.expr | None) -> None:
        text = text_of(default) if default is not None else None
        params.append(Parameter(node.arg, kind, text, text_of(node.annotation) if node.annotation else ""))
        end = default or node
        spans.append(Span(node.lineno, node.col_offset, end.end_lineno or 0, end.end_col_offset or 0))

    for node, default in zip(positional, defaults, strict=True):
        add(node, "positional", default)
    if arguments.vararg:
        add(arguments.vararg, "*", None)
    for node, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        add(node, "keyword", default)
    if arguments.kwarg:
        add(arguments.kwarg, "**", None)
    nested = tuple(nested_returns(function.body))
    return ForwardSignature(span_of(function), tuple(params), tuple(spans), nested, returns_mapping(function.body))


def _given(function: ast.FunctionDef) -> Iterator[tuple[str, Build]]:
    """What a function's parameters are made of: a constructor's annotations tell which layers it is handed."""
    for node in (*function.args.posonlyargs, *function.args.args):
        annotated = dotted(node.annotation) if node.annotation else ""
        if function.name != "__init__":
            yield node.arg, Build("param", node.arg)
        elif annotated.endswith(_LAYER_ENDINGS):
            yield node.arg, Build("class", annotated)


def _looked_up_in_kwargs(node: ast.ClassDef) -> Iterator[str]:
    for inner in walk(node):
        match inner:
            case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In()], comparators=[ast.Name(id="kwargs")]):
                yield name


def _params(function: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(
        argument.arg for argument in (*function.args.posonlyargs, *function.args.args) if argument.arg != "self"
    )


def _choice(builds: list[Build]) -> Build:
    return builds[0] if len(builds) == 1 else Build("choice", items=tuple(builds))


def _holds_class(built: Build) -> bool:
    return any(name.lstrip("_")[:1].isupper() for name in built.class_names())


def _learned(builder: Builder, functions: Iterable[ast.FunctionDef]) -> tuple[str, ...]:
    """The attributes that have parameters, and the methods that return what one of them makes."""
    names = dict.fromkeys(name for name, builds in builder.attributes.items() if any(map(is_learned, builds)))
    for function in functions if names else ():
        match function.body[-1]:
            case ast.Return(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name))) if name in names:
                names[function.name] = None
    return tuple(names)


def _useful(built: Build) -> bool:
    """Whether an attribute's build can matter: it names a class, a maker or another attribute."""
    if built.kind in ("maker", "attribute"):
        return True
    if built.is_sequential() and not built.items:
        return True  # it is filled later
    if built.kind == "class":
        return built.name not in _COMMON and not built.name.startswith(_NOT_MODULES)
    return any(map(_useful, built.items))
