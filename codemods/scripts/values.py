"""Values in a training script, by their relation to the gradient synchronisation of DistributedDataParallel."""

from __future__ import annotations

import ast
from typing import NamedTuple

from ckpt_surgery.codemods.facts.script_facts import Bypass, Spot


class Reached(NamedTuple):
    """A point reached in following the script: the running functions, each with its line, and the loops."""

    frames: tuple[tuple[ast.AST, int], ...]
    loops: tuple[ast.AST, ...]


class Inner(NamedTuple):
    """A module inside a wrapper, or a part of it.

    `how` is the expression that reached it, `wrapper` the identity of the wrapper. `sure` tells whether the file shows
    the wrapping, `part` whether it is a submodule or attribute. `site` is the call that passed it to a function of the
    file.
    """

    how: str
    wrapper: str
    sure: bool
    part: bool = False
    site: Spot | None = None


class TracedValue(NamedTuple):
    """What a value may be, and how it was computed.

    It may be a wrapper, a module inside one, or another of the `objects`, named by where they were made (`f x`, with a
    blank, is the parameter x of f). `around` are the forwards that it depends on and that bypass a wrapper; none if it
    also depends on one through a wrapper: then every gradient is synchronised, and `through` is True.
    """

    objects: frozenset[str] = frozenset()
    wrappers: frozenset[str] = frozenset()
    inners: frozenset[Inner] = frozenset()
    around: frozenset[Bypass] = frozenset()
    through: bool = False

    @property
    def computed(self) -> TracedValue:
        """The value of something computed from it: nothing but how it was computed."""
        return TracedValue(around=self.around, through=self.through)

    @property
    def part(self) -> TracedValue:
        """An attribute of the module, if this value is a module inside a wrapper."""
        return TracedValue(inners=frozenset(inner._replace(part=True) for inner in self.inners))

    def inside(self, how: str) -> TracedValue:
        """Return the module inside this value, reached by the expression `how`."""
        if self.inners and not self.wrappers:
            return self
        surely = frozenset(Inner(how, wrapper, True) for wrapper in self.wrappers)
        return TracedValue(inners=surely or frozenset({Inner(how, "", False)}))


UNTRACED = TracedValue()
