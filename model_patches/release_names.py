"""What libraries call the parts of checkpointing, by role and release: arguments, switches, flags, classes.

A name is looked up by its role, the latest first, so that a release that renames something needs a line here. Facts
only; a test holds them against the sources of the installed release.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReleaseName:
    """A name, and the releases of transformers that have it: from `since` to `until`, each "" where there is no end.

    `since` "" stands for the oldest release that is supported, 4.52.4.
    """

    text: str
    since: str = ""
    until: str = ""


Role = tuple[ReleaseName, ...]

CACHE_ARGUMENT: Role = (
    ReleaseName("cache", since="5.24.0"),
    ReleaseName("past_key_values", until="5.23.0"),
    ReleaseName("cache_params", until="5.23.0"),
)
"""The argument of a model that takes a `Cache`."""

CACHE_SWITCH: Role = (ReleaseName("use_cache"),)
"""The argument that has a model make a cache of its own."""

SWITCH_ON: Role = (
    ReleaseName("activation_checkpointing_enable", since="5.23.0"),
    ReleaseName("gradient_checkpointing_enable"),
)
"""The method of a model that switches checkpointing on. The older one only warns where both are."""

SWITCH_OFF: Role = (
    ReleaseName("activation_checkpointing_disable", since="5.23.0"),
    ReleaseName("gradient_checkpointing_disable"),
)
"""The method that switches it off."""

SWITCH_OPTIONS: Role = (
    ReleaseName("activation_checkpointing_kwargs", since="5.23.0"),
    ReleaseName("gradient_checkpointing_kwargs"),
)
"""The argument of the method that switches it on which takes the options of torch's `checkpoint`."""


def known_name(role: Role, names: Container[str]) -> str | None:
    """Return the latest name of this role that is among `names`; None where none is."""
    return next((name.text for name in role if name.text in names), None)
