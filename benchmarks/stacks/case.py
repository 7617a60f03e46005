"""One model of another library, tiny or in the proportions of a released one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Make = Callable[[], tuple[Any, Mapping[str, Any] | Sequence[Any]]]
"""Builds a model with random weights, and inputs for its forward: keyword arguments, or positional ones."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model of a library; `depth` says "tiny", or which released model it has the proportions of."""

    library: str
    model: str
    make: Make
    depth: str = "tiny"

    @property
    def name(self) -> str:
        """How the case is called on the command line and on the page."""
        return f"{self.library}: {self.model}, {self.depth}"
