"""The changes that rules ask for, each at one place in one file, named by class, function and call.

These are plain values, which can be compared and pickled. The libcst transformers that make the changes are in
`edits/`, because libcst takes longer to load than everything else that a check needs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.syntax import Span


@dataclass(frozen=True, slots=True, order=True)
class Definition:
    """A class or function by its qualified name, as in `FooModel.forward`; empty for the module itself.

    `index` distinguishes those with the same name, counted from 0 in source order.
    """

    name: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Occurrence:
    """A call, a name or an `if` inside a definition.

    `index` counts those with the same `code` from 0 in source order, and every `if`. For a call, `code` is its callee
    without white space, as in `self.layers[i]`.
    """

    definition: Definition
    code: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class NewArgument:
    """One argument of a rewritten call: an old one, from position `source`, or a new `text`.

    `comment` names the parameter whose default is filled in. `keyword` is None for a positional argument.
    """

    source: int | None
    keyword: str | None
    text: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class SourceRepair:
    """A change to the file at `path`: to the class or function of `target`, or to the imports if that is None.

    `span` is the text that it changes: if two repairs change the same text, one waits for the next round. A repair
    without a span overlaps no other.
    """

    path: str
    span: Span | None
    target: Definition | Occurrence | None

    def overlaps(self, others: Collection[SourceRepair]) -> bool:
        """Tell whether it changes the same text as another repair of its file, unless it is that very repair."""
        if self in others or self.span is None:
            return False
        begin, end = self.span[:2], self.span[2:]
        spans = [other.span for other in others if other.span is not None]
        return any(self.span == span or (begin < span[2:] and span[:2] < end) for span in spans)


@dataclass(frozen=True, slots=True)
class MakeLayer(SourceRepair):
    """The change of a class to a GradientCheckpointingLayer."""

    target: Definition


@dataclass(frozen=True, slots=True)
class ImportName(SourceRepair):
    """`from module import name`, added to the file's imports."""

    module: str
    name: str
    width: int


@dataclass(frozen=True, slots=True)
class DropImports(SourceRepair):
    """The removal of unused imported names."""

    names: tuple[str, ...]
    width: int


@dataclass(frozen=True, slots=True)
class KeepElseBranch(SourceRepair):
    """The replacement of an `if` by its else branch.

    `guards` are the positions of the statements in its body that stay under it.
    """

    target: Occurrence
    guards: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class PassArguments(SourceRepair):
    """Another argument list for a call."""

    target: Occurrence
    arguments: tuple[NewArgument, ...]
    width: int


@dataclass(frozen=True, slots=True)
class OrderParameters(SourceRepair):
    """Another order of a method's first parameters after `self`."""

    target: Definition
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropMethod(SourceRepair):
    """The removal of a method, with the comments directly above it."""

    target: Definition


@dataclass(frozen=True, slots=True)
class DeriveLayer(SourceRepair):
    """The addition of a GradientCheckpointingLayer that derives from a class, below that class."""

    target: Definition
    name: str
    docstring: str


@dataclass(frozen=True, slots=True)
class DeriveImportedLayer(SourceRepair):
    """The change of a guarded `from package import Block as FooBlock` to a plain import and a layer of that name."""

    name: str
    original: str


@dataclass(frozen=True, slots=True)
class ReplaceName(SourceRepair):
    """The replacement of a name or constant."""

    target: Occurrence
    new: str


@dataclass(frozen=True, slots=True)
class DropComment(SourceRepair):
    """The removal of a comment above a class or function: a `# Copied from` that is no longer true."""

    target: Definition
    comment: str
