"""The types for what is read from every file: classes, stacks, calls and inline branches, as plain frozen values.

No decision is made here and nothing of another file is known, so a file's facts depend on its text alone and can
be cached by its digest. `extract.py` makes them, `tree/` joins them. What a file has many of is a named tuple, which
is faster to make and to pickle than a dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.fact import Facts
from ckpt_surgery.codemods.facts.syntax import Argument, Span
from ckpt_surgery.model_patches.release_names import FLAG

AttributePath: TypeAlias = tuple[str, ...]
"""How a value is reached from `self`: attribute names, with `ELEMENT` for one step into a container."""

ELEMENT = "*"
DYNAMIC = "<setattr>"
"""Stands for an attribute whose name is made at run time: `setattr(self, f"layer{i}", ...)`."""
LOCAL = "<local>"
"""Begins the path of a function that the method itself defines."""
_MAX_PARTS = 400

Wrapping: TypeAlias = Literal["plain", "partial", "custom", "closure"]
"""How a checkpoint function gets what it runs: as it is, in a `functools.partial`, as the function that a helper such
as `create_custom_forward` returns, or as a function that the method defines."""

ParameterKind: TypeAlias = Literal["positional", "keyword", "*", "**"]

BuildKind: TypeAlias = Literal[
    "class", "container", "choice", "element", "spread", "attribute", "member", "maker", "param", "unknown"
]
"""`class`: an instance of the class `name`, or what a function of that name returns. `container`: holds `items`, and
calls them itself if its `name` is "Sequential". `choice`: one of `items`. `element`: an element of what `items` are.
`spread`: all elements of what `items` are, inside a container. `attribute`: `self.<name>`. `member`: the attribute
`name` of its item. `maker`: what the method `name` returns when called with `items`. `param`: the argument `name` of a
maker."""


class CarriedArgument(NamedTuple):
    """An argument of a call that holds what other calls returned, or this one in an earlier pass of its loop.

    `position` is its position among the call's arguments, `paths` lead to what returned it. With `in_container` it is
    a list, tuple or dict of such results.
    """

    position: int
    paths: tuple[AttributePath, ...]
    in_container: bool


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of something reached from `self`: perhaps a block."""

    method: str
    span: Span
    statement: Span
    callee: str
    paths: tuple[AttributePath, ...]
    args: tuple[Argument, ...]
    reads_more_under: tuple[str, ...] = ()
    """The names under whose tests the method reads later outputs, except those that are False under checkpointing."""
    idle_caches: tuple[int, ...] = ()
    """The positions of arguments that, in training, hold a cache only if the method's own caller passes one."""
    carried: tuple[CarriedArgument, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointCall:
    """A call of a checkpoint function. `paths` lead to what it runs, as far as the file shows that."""

    callee: str
    paths: tuple[AttributePath, ...]
    args: tuple[Argument, ...]
    wrapping: Wrapping
    span: Span
    keywords: tuple[str, ...] = ()
    """The keywords that it passes on to what it runs."""
    refused: tuple[str, ...] = ()
    """Those keywords for which the local function that it runs has no parameter."""
    uses_model_function: bool = False
    """Whether it calls the checkpoint function that transformers sets on a module when it switches it on."""
    runs_several: bool = False
    """Whether it runs a function that calls several modules."""
    body: Span | None = None
    """The function that it runs, if the method defines it."""


@dataclass(frozen=True, slots=True)
class InlineBranch:
    """`if <checkpointing>: ... checkpoint(...) ... else: ...`, or a checkpoint call outside any such test.

    `checkpoint(...) if <checkpointing> else ...` is one too, with expressions in place of statements.
    """

    method: str
    span: Span
    checkpoints: tuple[CheckpointCall, ...]
    test: str | None = None
    """The text of the test; None for a checkpoint call outside any."""
    conditions: tuple[str, ...] = ()
    """The terms of the test that are not about checkpointing or training."""
    is_elif: bool = False
    is_expression: bool = False
    has_else: bool = False
    else_is_elif: bool = False
    does_more: bool = False
    """Whether its body also does what the else branch does not."""
    guards: tuple[int, ...] = ()
    """The positions of its guards (`if use_cache: use_cache = False`), if code after the branch reads the name."""
    direct: tuple[ModuleCall, ...] = ()
    """The block calls of the else branch."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The different settings of `use_reentrant` in its checkpoint calls, as written."""
        arguments = (argument for checkpoint in self.checkpoints for argument in checkpoint.args)
        given = (f"use_reentrant={argument.text}" for argument in arguments if argument.name == "use_reentrant")
        return tuple(dict.fromkeys(given))

    @property
    def asks_for_flag(self) -> bool:
        """Whether the test reads the flag that transformers sets on a module."""
        return f"self.{FLAG}" in (self.test or "")


class HandedOn(NamedTuple):
    """Modules that a method passes to `function`, which may checkpoint them; with an empty name it does."""

    function: str
    paths: tuple[AttributePath, ...]
    with_values: bool = False
    """Whether the function gets other arguments too, to run them on."""


class Parameter(NamedTuple):
    """A parameter of a block's forward. `default` and `annotation` are source text."""

    name: str
    kind: ParameterKind
    default: str | None
    annotation: str
    span: Span


@dataclass(frozen=True, slots=True)
class ForwardSignature:
    """A forward method's signature without `self`, and what it returns."""

    span: Span
    params: tuple[Parameter, ...]
    nested_returns: tuple[Span, ...]
    """Statements that put a tuple or list inside a returned tuple."""
    returns_mapping: bool = False
    """Whether it returns a dict, or an output class of transformers."""


class Build(NamedTuple):
    """The construction of an attribute: see `BuildKind`."""

    kind: BuildKind
    name: str = ""
    items: tuple[Build, ...] = ()
    span: Span | None = None

    @classmethod
    def either(cls, builds: Sequence[Build]) -> Build:
        """Return the build of something that is one of these."""
        return builds[0] if len(builds) == 1 else cls("choice", items=tuple(builds))

    def is_large(self) -> bool:
        """Tell whether it has too many parts to follow: `x = f(x, x)`, repeated, doubles them each time."""
        pending, seen = [self], 0
        while pending and seen <= _MAX_PARTS:
            seen += 1
            pending.extend(pending.pop().items)
        return seen > _MAX_PARTS

    def spread(self) -> list[Build]:
        """Return the items that another container gets if this one is unpacked into it."""
        return list(self.items) if self.kind == "container" else [Build("spread", items=(self,))]

    def is_start_of(self, other: Build) -> bool:
        """Tell whether it is a container whose items the other one begins with."""
        same = self.kind == other.kind == "container" and self.name == other.name
        return same and self.items == other.items[: len(self.items)]

    def is_sequential(self) -> bool:
        """Tell whether it is, or holds, a container that calls its items."""
        return (self.kind == "container" and bool(self.name)) or any(item.is_sequential() for item in self.items)

    def with_parameters(self, values: Mapping[str, Build]) -> Build:
        """Return it with the parameters of a maker replaced by their values."""
        if self.kind == "param":
            return values.get(self.name, Build("unknown"))
        if not values or not self.items:
            return self
        items = tuple(item.with_parameters(values) for item in self.items)
        replaced = Build(self.kind, self.name, items, self.span)
        return Build("unknown") if replaced.is_large() else replaced

    def holds_several(self) -> bool:
        """Tell whether it is (or may be) a container of modules."""
        if self.kind in ("container", "maker"):
            return True
        return self.kind in ("choice", "element", "attribute", "class") and (
            (self.kind == "class" and self.name.lstrip("_")[:1].islower())
            or any(item.holds_several() for item in self.items)
        )

    def class_names(self) -> Iterator[str]:
        """Yield every class name that it mentions."""
        if self.kind == "class":
            yield self.name
        for item in self.items:
            yield from item.class_names()

    def names_class(self) -> bool:
        """Tell whether it mentions what is surely a class."""
        return any(name.lstrip("_")[:1].isupper() for name in self.class_names())


@dataclass(frozen=True, slots=True)
class Maker:
    """A function or method that returns modules: its parameters without `self`, and what it returns."""

    name: str
    params: tuple[str, ...]
    returns: Build


class Method(NamedTuple):
    """A method and its lines, decorators included."""

    name: str
    first_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class Class(Facts):
    """A class: its place, its bases, its containers and its calls."""

    name: str
    span: Span
    header: Span
    """From `class` to the end of the last base, without decorators."""
    bases: tuple[str, ...]
    base_spans: tuple[Span, ...]
    first_line: int
    """The line of the first decorator, or of `class` if there is none."""
    flags: tuple[tuple[str, str], ...]
    """Class attributes that matter, as text: `supports_gradient_checkpointing` and the like."""
    class_values: tuple[tuple[str, Build], ...]
    attributes: tuple[tuple[str, Build], ...]
    """`self.x = ...` of any method, in order."""
    learned: tuple[str, ...]
    """Attributes that are parameters or torch modules with some; methods that return what such modules compute."""
    makers: tuple[Maker, ...]
    forward: ForwardSignature | None
    methods: tuple[Method, ...]
    calls: tuple[ModuleCall, ...]
    inlines: tuple[InlineBranch, ...]
    handed_on: tuple[HandedOn, ...]
    provided: Mapping[str, object]
    """What the facts of `providers/` are for this class."""

    @property
    def checkpoint_calls(self) -> list[tuple[InlineBranch, CheckpointCall]]:
        """Every checkpoint call in its methods, each with its branch."""
        return [(inline, checkpoint) for inline in self.inlines for checkpoint in inline.checkpoints]

    def paths_behind(self, inline: InlineBranch, checkpoint: CheckpointCall) -> tuple[AttributePath, ...]:
        """Return the paths to what a checkpoint call runs.

        For a local function they lead to the modules it calls. If it calls another local function, or no module, they
        lead to all that the method calls.
        """
        if checkpoint.wrapping != "closure":
            return checkpoint.paths
        calls = [call for call in self.calls if call.method == inline.method]
        body = checkpoint.body
        inside = [call for call in calls if body and body.line <= call.span.line <= body.end_line]
        if any(path[0] == LOCAL for call in inside for path in call.paths):
            inside = calls
        return tuple(path for call in inside or calls for path in call.paths if path[0] != LOCAL)


@dataclass(frozen=True, slots=True)
class Import:
    """An import of `name`, as the file calls it, from `module`, which keeps its leading dots.

    `original` is the name in that module; it is empty if a module itself is imported.
    `guard` is the test of the `if` around the statement, or `try` or `except`; empty at module level.
    """

    name: str
    module: str
    original: str
    span: Span
    guard: str


@dataclass(frozen=True, slots=True)
class FileFacts(Facts):
    """All facts of one file."""

    imports: tuple[Import, ...]
    classes: tuple[Class, ...]
    values: tuple[tuple[str, Build], ...]
    """Module-level names that are bound to classes or containers of classes."""
    functions: tuple[str, ...]
    """The functions at module level."""
    provided: Mapping[str, object]
    """What the facts of `providers/` are for this file."""
