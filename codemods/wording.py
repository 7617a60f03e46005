"""The words of findings. Each reason carries its own, in an enum beside the code that decides on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.text import listed


class WordedReason(Enum):
    """A reason why something is not repaired, or not safely; each module that decides on some has a subclass.

    The value of a reason is its wording, with a `{}` for each name that it is about. Code compares reasons, not words.
    """

    _value_: str

    def about(self, *names: str) -> Because:
        """Return the reason together with the names that it is about."""
        return Because(self, names)


@dataclass(frozen=True, slots=True)
class Because:
    """A reason and the names concerned."""

    reason: WordedReason
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The reason in words."""
        return self.reason.value.format(*self.names)


def quoted(names: Iterable[str]) -> str:
    """Return the names as code: `a`, `b` and `c`."""
    return listed([f"`{name}`" for name in names])


def replaced_text(name: str) -> str:
    """Return why the forward that a class of this name defines proves nothing."""
    return f"another forward is assigned to {name}, which is not read"
