"""Declare facts: one thing that files, or their classes, say. Facts are declared in the modules of `providers/`.

    FACT = ClassFact("may_evaluate", may_evaluate, nothing=False, signs=("eval", "train"))

Nothing else lists it. A rule that needs it asks a file or a class for it: `ref.cls[FACT]`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from ckpt_surgery.codemods.facts.file_syntax import FileSyntax

T = TypeVar("T", covariant=True)


class FileFact(NamedTuple, Generic[T]):
    """A fact of a file: what `read` makes of its syntax, a plain frozen value that can be pickled.

    It is `nothing` for a file that has none of the words in `signs`, which is then not read. `worth` says of the text
    of a file whether it is worth reading, where the signs alone say so of too many.
    """

    name: str
    read: Callable[[FileSyntax], T]
    nothing: T
    signs: tuple[str, ...]
    worth: Callable[[str], bool] = lambda text: True

    def may_be_in(self, text: str) -> bool:
        """Tell whether a file of this text is worth parsing for this fact."""
        return any(sign in text for sign in self.signs) and self.worth(text)


class ClassFact(NamedTuple, Generic[T]):
    """The same for a class: `read` gets its node and its file's syntax.

    It is `nothing` for a class that has none of the signs, unless the module sets attributes of it. Without any signs
    every class is read.
    """

    name: str
    read: Callable[[ast.ClassDef, FileSyntax], T]
    nothing: T
    signs: tuple[str, ...]


class Facts:
    """The values of facts by name. Facts that say nothing are left out."""

    __slots__ = ()
    provided: Mapping[str, object]

    def __getitem__(self, fact: FileFact[T] | ClassFact[T]) -> T:
        return cast("T", self.provided.get(fact.name, fact.nothing))
