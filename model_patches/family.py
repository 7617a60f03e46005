"""What a family's file may say: each field of these two classes is a constant of the file, in capital letters.

A file is named after its model folder, starts with a docstring that names the releases of transformers in which its
facts were seen, and holds nothing but constants. Those with a leading underscore are private.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """Names that mean something else in a family than elsewhere: facts for the rules.

    They hold for the model folders that the constant `FAMILIES` lists, or for the one with the file's name.
    """

    gradient: Set[str] = frozenset()
    """Parameters of blocks that carry gradient: {"planes"}, or {"AcmeBlock.planes"} for one class alone."""
    not_gradient: Set[str] = frozenset()
    """Parameters that do not, whatever their names say."""
    past_state: Set[str] = frozenset()
    """Parameters that are caches or recurrent state."""
    blocks: Set[str] = frozenset()
    """Classes that are blocks although nothing in them shows it."""
    not_blocks: Set[str] = frozenset()
    """Classes that must not become layers."""
    not_stacks: Set[str] = frozenset()
    """Attributes whose elements are not blocks."""
    containers: Set[str] = frozenset()
    """Parameters that hold gradient tensors in a tuple or dict."""
    needs_cache: Set[str] = frozenset()
    """Models whose forward fails without `use_cache`, or uses another mask."""
    cache_decides: Mapping[str, str] = field(default_factory=dict)
    """Models that compute something else without a cache, each with the first release that does not."""
    reads_caches: Set[str] = frozenset()
    """Models that read the caches of their parts, which therefore have to fill them."""
    derived: Mapping[str, str] = field(default_factory=dict)
    """Stack attribute to the name of the subclass to make for it, as its class is used inside other blocks, too."""


@dataclass(frozen=True, slots=True)
class FamilyTables:
    """Tables to build models and their inputs, in addition to the general rules. A key may be a tuple of several.

    Keys are model types ("blip-2"), classes ("Blip2Model") or, in `parts`, model folders ("blip_2"). Tiny models have
    two layers of width 64, more where a class needs it: `ckpt_surgery/tiny/field_rules.py`.
    """

    tiny: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Model type to fields of tiny configurations: {"acme": {"num_planes": 4}}. They are set if the configuration
    declares them, with a `+` before the name anyway; of a nested configuration, a dictionary changes what it names."""
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Model type to fields that no rule may change."""
    shown: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Model type to fields that switch on parts which a class disables by default and trainings use."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Model type to arguments of its configuration, which has no usable defaults."""
    fitted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Model type to fields of its defaults at their full size, which do not fit together: for `plan` and `explain`."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Class to fields that have another value for it than for other classes of its configuration."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Class to the reason why nobody can train it, which `verify` gives instead of a verdict."""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Model folder to classes that train or checkpoint on their own, each with its configuration class, where
    transformers does not export the class or names no configuration for it."""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Class, or else model type, to arguments of a forward that its names do not imply: {"acme": {"planes":
    "floats(batch, num_planes, hidden_size)"}}. Each is passed if the forward takes it, with a `+` before the
    name anyway, in their order; None removes one. `ckpt_surgery/tiny/forms.py` has what a text may say."""
