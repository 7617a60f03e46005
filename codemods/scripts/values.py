"""What a value in a training script is, as far as the gradient synchronisation of DistributedDataParallel goes.

Values are joined where branches meet, and mixed where one is computed from several.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ckpt_surgery.codemods.facts.script_facts import Spot


class Inner(NamedTuple):
    """A module inside a wrapper, or a part of it.

    `how` is the expression that reached it, `wrapper` the identity of the wrapper, `sure` whether the file shows
    the wrapping. `part` is a submodule or attribute. `site` is the call that handed it to a function of the file.
    """

    how: str
    wrapper: str
    sure: bool
    part: bool = False
    site: Spot | None = None


class BypassingForward(NamedTuple):
    """A forward that goes around the wrapper, by `method` where it is not the module's own call.

    `runs` is False where the module is only handed elsewhere.
    """

    spot: Spot
    callee: str
    inner: Inner
    method: str
    runs: bool


@dataclass(frozen=True, slots=True)
class TracedValue:
    """Any of: plain `objects` by where they were made (with a blank: `f x` for the parameter x of f),
    `wrappers`, `inners`; and how it was computed.

    `around` are forwards around a wrapper that it depends on, without one through a wrapper beside them:
    once the wrapper's own forward has run, every gradient is synchronised. `through` tells that this one has.
    """

    objects: frozenset[str] = frozenset()
    wrappers: frozenset[str] = frozenset()
    inners: frozenset[Inner] = frozenset()
    around: frozenset[BypassingForward] = frozenset()
    through: bool = False

    @property
    def computed(self) -> TracedValue:
        """Only how it was computed."""
        return TracedValue(around=self.around, through=self.through)

    @property
    def is_unknown(self) -> bool:
        """Whether nothing in the file tells what it is: a parameter, or an attribute that others set."""
        return any(" " in one for one in self.objects)

    def inside(self, how: str) -> TracedValue:
        """The module inside this value, reached by the expression `how`."""
        if self.wrappers:
            return TracedValue(inners=frozenset(Inner(how, one, True) for one in self.wrappers))
        if self.inners:
            return self
        return TracedValue(inners=frozenset({Inner(how, "", False)}))

    def part(self) -> TracedValue:
        """An attribute of the module that this value is."""
        return TracedValue(inners=frozenset(one._replace(part=True) for one in self.inners))

    def handed(self, site: Spot) -> TracedValue:
        """This value as the parameter of a function that was called at `site`."""
        if not self.inners:
            return self
        return replace(self, inners=frozenset(one._replace(site=one.site or site) for one in self.inners))

    def item(self, index: int) -> TracedValue:
        """One of the values that a tuple is unpacked into: other objects, computed in the same way."""
        return replace(self, objects=frozenset(f"{one}.{index}" for one in self.objects))


NOTHING = TracedValue()


def join(values: Iterable[TracedValue]) -> TracedValue:
    """Any of the values. What is now a wrapper and now the module inside it is an unwrapped model."""
    several = list({id(one): one for one in values}.values())
    if len(several) == 1:
        return several[0]  # as it is with almost all names where two branches meet
    inners = frozenset[Inner]().union(*(one.inners for one in several))
    wrappers = frozenset[str]().union(*(one.wrappers for one in several))
    return TracedValue(
        objects=frozenset[str]().union(*(one.objects for one in several)),
        wrappers=wrappers - {one.wrapper for one in inners},
        inners=inners,
        around=frozenset[BypassingForward]().union(*(one.around for one in several)),
        through=any(one.through for one in several),
    )


def mix(values: Iterable[TracedValue]) -> TracedValue:
    """What is computed from all the values."""
    several = list(values)
    through = [one.through for one in several]
    around = frozenset[BypassingForward]().union(
        *(one.around for at, one in enumerate(several) if not any(through[:at] + through[at + 1 :]))
    )
    return TracedValue(around=around, through=any(through))
