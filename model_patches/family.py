"""The form that a family's facts take."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """What a family means by names that mean something else, or nothing, elsewhere.

    `families` lists the model folders that the facts are for, where the module's own name is not it.
    `gradient` and `not_gradient` are parameter names of its blocks' forwards, also as `Class.name` for one
    class; `past_state` those that are caches or recurrent state there, `containers` those that hold
    gradient tensors in a tuple or dict. `blocks` are classes that are blocks although nothing in them
    tells, `not_blocks` such that must not become layers, `not_stacks` attributes whose elements are no
    blocks. `derived` names, per stack attribute, a subclass to make for it: its element class is also used
    inside other blocks, where it must not checkpoint. `needs_cache` are models whose forward breaks without a
    cache.
    """

    families: tuple[str, ...] = ()
    gradient: frozenset[str] = frozenset()
    not_gradient: frozenset[str] = frozenset()
    past_state: frozenset[str] = frozenset()
    blocks: frozenset[str] = frozenset()
    not_blocks: frozenset[str] = frozenset()
    not_stacks: frozenset[str] = frozenset()
    containers: frozenset[str] = frozenset()
    needs_cache: frozenset[str] = frozenset()
    derived: dict[str, str] = field(default_factory=dict)
