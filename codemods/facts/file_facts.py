"""What one file says, as plain frozen values: classes, stacks, call sites, inline branches, training scripts.

No decision is taken here and nothing of another file is known, so a file's facts depend on its text
alone and can be cached by its digest. `extract.py` makes them; `tree_index.py` joins them. What there are
many of is a named tuple: that is made and pickled faster than a dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ckpt_surgery.codemods.scripts.script_facts import ScriptFacts

Path: TypeAlias = tuple[str, ...]
"""How a value is reached from `self`: attribute names, with `ELEMENT` for one step into a container."""

ELEMENT = "*"
_LARGEST = 400
DYNAMIC = "<setattr>"
"""Stands for an attribute whose name is made at run time: `setattr(self, f"layer{i}", ...)`."""


class Span(NamedTuple):
    """A range of a file as `ast` counts it: lines from 1, columns in UTF-8 bytes from 0, end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Arg(NamedTuple):
    """One argument of a call. `name` is None for a positional one, `*` or `**` for an unpacked one."""

    name: str | None
    text: str
    shape: str
    """The kind of expression: none, constant, name, list, tuple, dict, or other."""
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """A call of something reached from `self`: perhaps a block."""

    method: str
    span: Span
    statement: Span
    callee: str
    paths: tuple[Path, ...]
    args: tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCall:
    """A direct call of a checkpoint function. `paths` is what it runs, where that can be told."""

    callee: str
    paths: tuple[Path, ...]
    args: tuple[Arg, ...]
    wrapped: str
    """How the callee is handed over: plain, partial, custom (a `create_custom_forward`) or closure."""


@dataclass(frozen=True, slots=True)
class InlineBranch:
    """`if <checkpointing>: ... checkpoint(...) ... else: ...`, or a checkpoint call outside any such test."""

    method: str
    span: Span
    checkpoints: tuple[CheckpointCall, ...]
    test: str = ""
    conditions: tuple[str, ...] = ()
    """The terms of the test that are not about checkpointing or training."""
    is_elif: bool = False
    body: tuple[Span, ...] = ()
    body_kinds: tuple[str, ...] = ()
    """One word per statement: checkpoint, guard, past, function, mirrored, log or other."""
    orelse: tuple[Span, ...] = ()
    orelse_is_elif: bool = False
    direct: tuple[Call, ...] = ()
    """The block calls of the else branch."""
    guard: str = ""
    """The name that a guard statement of the branch switches off (`use_cache`), or empty."""
    guard_needed: bool = False
    """Whether code after the branch reads that name."""

    @property
    def bare(self) -> bool:
        """Whether the checkpoint call stands under no test."""
        return not self.test


class Parameter(NamedTuple):
    """A parameter of a block's forward. `kind`: positional, keyword, `*` or `**`."""

    name: str
    kind: str
    default: str | None
    annotation: str


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward method's signature, `self` left out, and what it returns."""

    span: Span
    params: tuple[Parameter, ...]
    param_spans: tuple[Span, ...]
    nested_returns: tuple[Span, ...]
    """Return statements whose value holds a tuple or list inside a tuple."""


class Build(NamedTuple):
    """What an attribute is made of.

    `kind`: class (a constructor, or a function of this file, named `name`), container, choice (one of
    `items`), element (of what `items` hold), spread (all that `items` hold, inside a container),
    attribute (`self.<name>`), maker (a method that returns it, called with `items`), param (what a
    maker is given), or unknown.
    """

    kind: str
    name: str = ""
    items: tuple[Build, ...] = ()
    span: Span | None = None

    def is_large(self) -> bool:
        """Whether it has so many parts that following them all would never end (`x = f(x, x)`, often)."""
        waiting, seen = [self], 0
        while waiting and seen <= _LARGEST:
            seen += 1
            waiting.extend(waiting.pop().items)
        return seen > _LARGEST

    def class_names(self) -> Iterator[str]:
        """Every class name that it mentions."""
        if self.kind == "class":
            yield self.name
        for item in self.items:
            yield from item.class_names()


@dataclass(frozen=True, slots=True)
class Maker:
    """A function or method that returns modules: its parameters (`self` left out) and what it returns."""

    name: str
    params: tuple[str, ...]
    returns: Build


@dataclass(frozen=True, slots=True)
class Class:
    """A class: where it stands, what it inherits, what it holds and what it calls."""

    name: str
    span: Span
    header: Span
    """From `class` to the colon, decorators left out."""
    bases: tuple[str, ...]
    base_spans: tuple[Span, ...]
    first_line: int
    """The line of the first decorator, or of `class` where there is none."""
    guard: str
    """The test of the `if` that the class stands under, or empty."""
    flags: tuple[tuple[str, str], ...]
    """Class attributes that matter: `supports_gradient_checkpointing` and the like, as text."""
    class_values: tuple[tuple[str, Build], ...]
    attributes: tuple[tuple[str, Build], ...]
    """`self.x = ...` of any method, in order."""
    makers: tuple[Maker, ...]
    forward: Forward | None
    methods: tuple[str, ...]
    calls: tuple[Call, ...]
    inlines: tuple[InlineBranch, ...]


@dataclass(frozen=True, slots=True)
class Import:
    """`name` as this file knows it: module text (with its leading dots) and the original name."""

    name: str
    module: str
    original: str
    span: Span
    guard: str


@dataclass(frozen=True, slots=True)
class CopiedFrom:
    """A `# Copied from a.b.C with X->Y` comment: its line, and the object that it stands on."""

    line: int
    source: str
    replacements: str
    span: Span


@dataclass(frozen=True, slots=True)
class FileFacts:
    """All that one file says."""

    imports: tuple[Import, ...]
    classes: tuple[Class, ...]
    values: tuple[tuple[str, Build], ...]
    """Module-level names bound to classes, dicts of classes or makers."""
    makers: tuple[Maker, ...]
    cleared: tuple[str, ...] | None
    """In the file that defines GradientCheckpointingLayer: the keywords that it clears. None elsewhere."""
    generated_from: str
    """The modular file named in a generated file's header, or empty."""
    copies: tuple[CopiedFrom, ...]
    script: ScriptFacts | None = None
    """What it says as a training script; None for a file that is none."""
