"""Define what a fact is: one thing read from a file or a class. Facts are declared in the modules of `providers/`.

    FACT = ClassFact("may_evaluate", may_evaluate, nothing=False, signs=("eval", "train"))

A fact is listed nowhere else. A rule that needs it looks it up in a file or a class: `ref.cls[FACT]`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from ckpt_surgery.codemods.facts.file_syntax import FileSyntax

T = TypeVar("T", covariant=True)


class FileFact(NamedTuple, Generic[T]):
    """A fact of a file: `read` makes it of the file's syntax, as a plain frozen value that can be pickled.

    A file whose text has none of the words in `signs` is not read: the fact is `nothing` there. Nor is one for which
    `worth` is False, a closer look at the text for signs that too many files have.
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
    """A fact of a class: `read` makes it of the class's node and its file's syntax.

    A class without any of the signs is not read, unless the module sets attributes of it: the fact is `nothing` there.
    A fact with no signs is read from every class.
    """

    name: str
    read: Callable[[ast.ClassDef, FileSyntax], T]
    nothing: T
    signs: tuple[str, ...]


class Facts:
    """The values of facts by name. Those that are `nothing` are left out."""

    __slots__ = ()
    provided: Mapping[str, object]

    def __getitem__(self, fact: FileFact[T] | ClassFact[T]) -> T:
        return cast("T", self.provided.get(fact.name, fact.nothing))
