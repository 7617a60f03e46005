"""What a rule asks to change: one place of one file, named by its class, function and call.

Values only, which are compared and travel between processes. The libcst transformers that make the changes are in
`edits/`, apart from these: libcst takes longer to load than all else that a check needs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.syntax import Span


@dataclass(frozen=True, slots=True, order=True)
class Definition:
    """A class or function by its qualified name, as in `FooModel.forward`; empty for the module itself.

    Of several with the same name, `index` counts them from 0 in source order.
    """

    name: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Occurrence:
    """A call, a name or an `if` inside a definition: the one at `index`, in source order.

    The index counts from 0. `code` tells which calls (by what they call, as in `self.layers[i]`) or names count,
    without white space. Each `if` counts.
    """

    definition: Definition
    code: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class NewArgument:
    """One argument of the new call: an old one (`source` is its position there), or a new `text`.

    `comment` names the parameter that a default stands for. `keyword` is None for a positional argument.
    """

    source: int | None
    keyword: str | None
    text: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class SourceRepair:
    """A change of the file at `path`, in the class or function of `target`; of the imports where that is None.

    `span` is the text that it changes: of two repairs that change the same text, one waits for the next round. None
    where others may change what is around it.
    """

    path: str
    span: Span | None
    target: Definition | Occurrence | None

    def overlaps(self, others: Collection[SourceRepair]) -> bool:
        """Tell whether it changes what another repair of its file does: their spans meet, or are the same place."""
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

    `guards` are the positions of statements of its body that stay under it.
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
    """The removal of a method, with the comments right above it."""

    target: Definition


@dataclass(frozen=True, slots=True)
class DeriveLayer(SourceRepair):
    """A new class below another: a GradientCheckpointingLayer that derives from it."""

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
