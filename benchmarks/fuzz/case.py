"""A case: the features, the training loop and the options of one comparison, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fuzz.features import ALONE, FEATURES
from benchmarks.fuzz.loops import LOOPS
from benchmarks.fuzz.model import PARAMETERS, FuzzModel

OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"every_n": 2},
    {"first": 1},
    {"offload": "cpu"},
    {"offload": "disk"},
    {"save": "matmul"},
    {"save": "matmul:2", "offload": "cpu", "save_offload": True},
)
"""Options of `wrap_blocks` that are drawn; half of the cases have none."""


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of a comparison. The seed chooses weights and variants; the rest may change without it."""

    seed: int
    loop: str = "steps"
    features: tuple[str, ...] = ()
    blocks: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def drawn(cls, seed: int) -> Case:
        """Return the case of a seed."""
        rng = random.Random(f"case {seed}")
        features: list[str] = []
        for name in rng.sample(list(FEATURES), rng.choice((1, 1, 2, 2, 3, 4))):
            if name not in ALONE or ALONE.isdisjoint(features):
                features.append(name)
        loop = "steps" if rng.random() < 0.3 else rng.choice(list(LOOPS))
        options = rng.choice(OPTIONS) if rng.random() < 0.5 else {}
        return cls(seed, loop, tuple(features), rng.choice((2, 3, 4)), options)

    def make_model(self) -> FuzzModel:
        """Make a new model with new features."""
        rng = random.Random(f"model {self.seed}")
        of_library, by_position = rng.random() < 0.5, rng.randint(0, len(PARAMETERS))
        features = [FEATURES[name](random.Random(f"{self.seed} {name}")) for name in self.features]
        return FuzzModel(features, self.blocks, of_library=of_library, by_position=by_position)
