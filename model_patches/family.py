"""What a family's file may say: each field of these two classes is a constant of the file, in capital letters.

A file is named after its model folder, starts with a docstring that names the releases its facts were seen in, and
holds nothing but constants. Those with a leading underscore are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """What a family means by names that mean something else, or nothing, elsewhere: facts for the rules.

    They hold for the model folders that the constant `FAMILIES` lists, or for the one with the file's name.
    `gradient` and `not_gradient` are parameter names of the blocks' forwards, `Class.name` for one class alone;
    `past_state` are those that are caches or recurrent state, `containers` those that hold gradient tensors in a tuple
    or dict. `blocks` are classes that are blocks although nothing in them shows it, `not_blocks` classes that must not
    become layers, `not_stacks` attributes whose elements are not blocks. `derived` names, for a stack attribute, the
    subclass to make for it: its element class is also used inside other blocks, where it must not checkpoint.
    `needs_cache` are models whose forward fails without `use_cache`, or takes another mask, and `cache_decides` those
    that compute something else without a cache, each with the release in which that ended. `reads_caches` are models
    that go on with the caches of their parts, which so have to fill them.
    """

    gradient: Set[str] = frozenset()
    not_gradient: Set[str] = frozenset()
    past_state: Set[str] = frozenset()
    blocks: Set[str] = frozenset()
    not_blocks: Set[str] = frozenset()
    not_stacks: Set[str] = frozenset()
    containers: Set[str] = frozenset()
    needs_cache: Set[str] = frozenset()
    cache_decides: Mapping[str, str] = field(default_factory=dict)
    reads_caches: Set[str] = frozenset()
    derived: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FamilyTables:
    """What it takes to build models and their inputs, on top of the general rules. A key may be a tuple of several.

    By model type: `tiny` are fields of tiny configurations, where the configuration declares them; a name with a `+`
    is set even if it does not, and a dictionary for a nested configuration changes the fields it names. `kept` are
    fields that no rule may change, `shown` parts that a class disables by default and trainings use, `defaults` the
    arguments of configurations without usable defaults, and `fitted` the fields of defaults that do not fit together.

    By model class: `options` are attributes with another value than the other classes of the configuration have, and
    `left_out` says why nobody can train a class. By model folder: `parts` are classes that train or checkpoint on
    their own and that transformers does not export, or names no configuration for, each with the one it takes.

    `inputs` are arguments of a forward that its names do not imply, by class or, where a class has none of its own, by
    model type. Each is given where the forward takes it, or anyway if its name starts with `+`, in the order in which
    they stand; with None it is taken away. A text says how to make a tensor: `ckpt_surgery/tiny/forms.py`.
    """

    tiny: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shown: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fitted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
