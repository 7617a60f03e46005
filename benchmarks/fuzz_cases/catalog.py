"""Every feature and every training loop by its kind, which is the module that it stands in, and by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import TypeVar

from benchmarks.fuzz_cases import (
    arguments,
    caches,
    draws,
    elsewhere,
    exceptions,
    experts,
    graph,
    hooks,
    interruptions,
    late,
    layers,
    numerics,
    objects,
    outputs,
    state,
    steps,
    use_cache,
    weights,
)
from benchmarks.fuzz_cases.feature import Feature
from benchmarks.fuzz_cases.training import Scenario

Kind = TypeVar("Kind")


def _by_name(module: ModuleType, base: type[Kind]) -> dict[str, type[Kind]]:
    """The features or loops that a module defines, in its table or as public classes; not those to build on."""
    classes = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and value is not state.Stateful
    }
    return {**getattr(module, "TABLE", {}), **classes}


def _by_kind(base: type[Kind], modules: Iterable[ModuleType]) -> dict[str, dict[str, type[Kind]]]:
    return {module.__name__.rpartition(".")[2]: _by_name(module, base) for module in modules}


_PARTS = (layers, state, elsewhere, draws, experts, graph, weights, numerics, hooks)
_AROUND = (arguments, objects, outputs, caches, use_cache)
GROUPS = _by_kind(Feature, (*_PARTS, *_AROUND))
LOOPS = _by_kind(Scenario, (steps, interruptions, late, exceptions))
FEATURES = {name: feature for group in GROUPS.values() for name, feature in group.items()}
SCENARIOS = {name: loop for group in LOOPS.values() for name, loop in group.items()}
PLAIN_SCENARIO = steps.OneStep.__name__
KIND_OF = {name: kind for kind, group in GROUPS.items() for name in group}
KIND_OF |= {name: kind for kind, group in LOOPS.items() for name in group}
KINDS = (*GROUPS, *LOOPS)
