"""What a value in a training script is to the gradient synchronisation of DistributedDataParallel.

Values are joined where branches meet, and mixed where one is computed from several.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ckpt_surgery.codemods.facts.script_facts import Spot


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


class BypassingForward(NamedTuple):
    """A forward that bypasses the wrapper; `method` is empty for a call of the module itself.

    `runs` is False if the module is only passed on.
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
        """Whether nothing in the file shows what it is: a parameter, or an attribute set elsewhere."""
        return any(" " in identity for identity in self.objects)

    def inside(self, how: str) -> TracedValue:
        """The module inside this value, reached by the expression `how`."""
        if self.wrappers:
            return TracedValue(inners=frozenset(Inner(how, wrapper, True) for wrapper in self.wrappers))
        if self.inners:
            return self
        return TracedValue(inners=frozenset({Inner(how, "", False)}))

    def part(self) -> TracedValue:
        """An attribute of the module that this value is."""
        return TracedValue(inners=frozenset(inner._replace(part=True) for inner in self.inners))

    def handed(self, site: Spot) -> TracedValue:
        """This value as the parameter of a function that was called at `site`."""
        if not self.inners:
            return self
        return replace(self, inners=frozenset(inner._replace(site=inner.site or site) for inner in self.inners))

    def item(self, index: int) -> TracedValue:
        """One of the values that a tuple is unpacked into: other objects, computed in the same way."""
        return replace(self, objects=frozenset(f"{identity}.{index}" for identity in self.objects))


UNTRACED = TracedValue()


def join(values: Iterable[TracedValue]) -> TracedValue:
    """Any of the values. What is now a wrapper and now the module inside it is an unwrapped model."""
    distinct = list({id(value): value for value in values}.values())
    if len(distinct) == 1:
        return distinct[0]  # as it is with almost all names where two branches meet
    inners = frozenset[Inner]().union(*(value.inners for value in distinct))
    wrappers = frozenset[str]().union(*(value.wrappers for value in distinct))
    return TracedValue(
        objects=frozenset[str]().union(*(value.objects for value in distinct)),
        wrappers=wrappers - {value.wrapper for value in inners},
        inners=inners,
        around=frozenset[BypassingForward]().union(*(value.around for value in distinct)),
        through=any(value.through for value in distinct),
    )


def mix(values: Iterable[TracedValue]) -> TracedValue:
    """What is computed from all the values."""
    parts = list(values)
    through = [value.through for value in parts]
    around = frozenset[BypassingForward]().union(
        *(value.around for index, value in enumerate(parts) if not any(through[:index] + through[index + 1 :]))
    )
    return TracedValue(around=around, through=any(through))
