"""The form that a family's facts take."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """What a family means by names that mean something else, or nothing, elsewhere.

    `families` lists the model folders that the facts are for; none means the folder with the module's name.
    `gradient` and `not_gradient` are parameter names of the blocks' forwards, `Class.name` for one class alone;
    `past_state` are those that are caches or recurrent state, `containers` those that hold gradient tensors in a tuple
    or dict. `blocks` are classes that are blocks although nothing in them shows it, `not_blocks` classes that must not
    become layers, `not_stacks` attributes whose elements are not blocks. `derived` names, for a stack attribute, the
    subclass to make for it: its element class is also used inside other blocks, where it must not checkpoint.
    `needs_cache` are models whose forward fails without `use_cache`, or takes another mask, and `cache_decides` those
    that compute something else without a cache, each with the release in which that ended. `reads_caches` are models
    that go on with the caches of their parts, which so have to fill them.
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
    cache_decides: dict[str, str] = field(default_factory=dict)
    reads_caches: frozenset[str] = frozenset()
    derived: dict[str, str] = field(default_factory=dict)
