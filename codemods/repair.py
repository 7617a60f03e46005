"""What a rule asks to change: one place of one file, named by its class, function and call.

Values only, which are compared and travel between processes. The libcst transformers that make the changes are in
`edits/`, apart from these: libcst takes longer to load than all else that a check needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckpt_surgery.codemods.facts.syntax import Span


@dataclass(frozen=True, slots=True, order=True)
class Definition:
    """A class or function by its qualified name, as in `FooModel.forward`; the module itself where it is empty.

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


@dataclass(frozen=True, slots=True)
class MakeLayer(SourceRepair):
    """A class becomes a GradientCheckpointingLayer."""

    target: Definition


@dataclass(frozen=True, slots=True)
class ImportName(SourceRepair):
    """`from module import name`, among the file's imports."""

    module: str
    name: str
    width: int


@dataclass(frozen=True, slots=True)
class DropImports(SourceRepair):
    """Imported names that nothing uses go."""

    names: tuple[str, ...]
    width: int


@dataclass(frozen=True, slots=True)
class KeepElseBranch(SourceRepair):
    """An `if` gives way to its else branch.

    `guards` are the positions of statements of its body that stay under it.
    """

    target: Occurrence
    guards: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class PassArguments(SourceRepair):
    """A call gets another argument list."""

    target: Occurrence
    arguments: tuple[NewArgument, ...]
    width: int


@dataclass(frozen=True, slots=True)
class OrderParameters(SourceRepair):
    """The first parameters of a method after `self`, in another order."""

    target: Definition
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropMethod(SourceRepair):
    """A method goes, with the comments right above it."""

    target: Definition


@dataclass(frozen=True, slots=True)
class DeriveLayer(SourceRepair):
    """A new class below another: a GradientCheckpointingLayer that derives from it."""

    target: Definition
    name: str
    docstring: str


@dataclass(frozen=True, slots=True)
class DeriveImportedLayer(SourceRepair):
    """`from package import Block as FooBlock`, under a guard, becomes the plain import and a layer of that name."""

    name: str
    original: str


@dataclass(frozen=True, slots=True)
class ReplaceName(SourceRepair):
    """Another name or constant in the place of one."""

    target: Occurrence
    new: str


@dataclass(frozen=True, slots=True)
class DropComment(SourceRepair):
    """A comment above a class or function goes: a `# Copied from` that is not true any more."""

    target: Definition
    comment: str
