"""Every feature and every training loop by name: the classes of the modules beside this one."""

from __future__ import annotations

import inspect
from types import ModuleType

from benchmarks.fuzz_cases import (
    arguments,
    draws,
    experts,
    graph,
    hooks,
    interruptions,
    layers,
    numerics,
    objects,
    outputs,
    rare_state,
    state,
    steps,
    weights,
)
from benchmarks.fuzz_cases.feature import Feature
from benchmarks.fuzz_cases.training import Scenario


def _classes(module: ModuleType, kind: type) -> dict[str, type]:
    """The public classes of a kind that a module defines itself, leaving out those that only others build on."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, kind)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


_MODULES = (layers, state, rare_state, draws, experts, graph, weights, numerics, hooks, arguments, objects, outputs)

GROUPS: dict[str, dict[str, type[Feature]]] = {
    module.__name__.rpartition(".")[2]: {
        name: value for name, value in _classes(module, Feature).items() if name != "Stateful"
    }
    for module in _MODULES
}
"""The features by the module that they stand in, and by name."""

FEATURES: dict[str, type[Feature]] = {name: kind for group in GROUPS.values() for name, kind in group.items()}
SCENARIOS: dict[str, type[Scenario]] = {
    name: kind for module in (steps, interruptions) for name, kind in _classes(module, Scenario).items()
}
PLAIN_SCENARIO = steps.OneStep.__name__
