"""A case: the features, the training loop and the options of one comparison, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.fuzz_cases.catalog import FEATURES, GROUPS, PLAIN_SCENARIO, SCENARIOS
from benchmarks.fuzz_cases.feature import Feature, Output
from benchmarks.fuzz_cases.model import FuzzModel, model_of
from benchmarks.fuzz_cases.training import Scenario

Mode = Literal["non_reentrant", "reentrant"]
MODES: tuple[Mode, ...] = ("non_reentrant", "reentrant")
Store = Literal["cpu", "late", "disk"]
"""Where offload puts what it moves: host memory at once, host memory as late as may be, or files."""
STORES: tuple[Store, ...] = ("cpu", "late", "disk")

_NUMBER_OF_FEATURES = (0, 1, 1, 2, 2, 2, 3, 3, 4, 5)
_PLAIN_LOOPS = ("OneStep", "OneStep", "ThreeSteps", "OneStep", "ThreeSteps", "FiveSteps")
_PLAIN_SHARE = 0.55
_NO_OFFLOAD = "device"
_STORES: tuple[Store, ...] = ("late", "late", "cpu", "disk")
_SAVES = (("matmul",), ("matmul:2",), ("aten.tanh",), ("matmul", "aten.tanh"))
"""What every block has results of."""
_SAVING_SHARE = 0.25
_SEVERAL_RESULTS = frozenset({*GROUPS["outputs"], "Collector", "StoredLogits"})


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared. The seed decides between the variants of a feature; the rest may be changed without it.

    Results that a case says to `save` go to the store of its offload too, where it has one.
    """

    seed: int
    mode: Mode
    offload: Store | None
    every_n: int
    blocks: int
    features: tuple[str, ...]
    scenario: str
    save: tuple[str, ...] = ()

    @classmethod
    def drawn(cls, seed: int, mode: Mode | None = None) -> Case:
        """The case of a seed, in the mode that the seed says or in another."""
        rng = random.Random(f"case {seed}")
        drawn_mode = rng.choice(MODES)
        mode = mode or drawn_mode
        stores = random.Random(f"store {seed}")  # a generator of its own: the rest of a case stays as it was
        store: Store = stores.choice(_STORES)
        offload = store if rng.random() < 0.25 else None
        saves = mode == "non_reentrant" and stores.random() < _SAVING_SHARE
        save = stores.choice(_SAVES) if saves else ()
        every_n, blocks = rng.choice((1, 1, 1, 2)), rng.choice((2, 2, 3))
        groups = [rng.choice(list(GROUPS)) for _ in range(rng.choice(_NUMBER_OF_FEATURES))]
        features = _compatible([rng.choice(list(GROUPS[group])) for group in groups])
        loops = _PLAIN_LOOPS if rng.random() < _PLAIN_SHARE else tuple(SCENARIOS)
        return cls(seed, mode, offload, every_n, blocks, features, rng.choice(loops), save)._as_promised()

    def _as_promised(self) -> Case:
        """The case without what `wrap_blocks` does not promise.

        With `use_reentrant=True` a hook on one of several results of a block does not see the gradient that reaches
        it through the others.
        """
        if self.mode == "non_reentrant" or _SEVERAL_RESULTS.isdisjoint(self.features):
            return self
        scenario = PLAIN_SCENARIO if self.scenario == "RetainedGradients" else self.scenario
        return replace(self.without("OutputGradientHook"), scenario=scenario)

    def without(self, feature: str) -> Case:
        """The case without one of its features."""
        return replace(self, features=tuple(name for name in self.features if name != feature))

    def simpler(self) -> list[Case]:
        """Cases with one thing less than this one, each: a feature, the training loop, an option, a block."""
        plain = [
            replace(self, scenario=PLAIN_SCENARIO),
            replace(self, offload=None),
            replace(self, save=()),
            replace(self, every_n=1),
            replace(self, blocks=2),
        ]
        fewer = [self.without(feature) for feature in self.features]
        return [case for case in (*fewer, *plain) if case != self]

    def make_features(self) -> list[Feature]:
        """New features for one run."""
        return [FEATURES[name](random.Random(f"{self.seed} {name}")) for name in self.features]

    def make_model(self, features: list[Feature]) -> FuzzModel:
        """A new model of these features. Some of its arguments are given by position, the others by keyword."""
        rng = random.Random(f"call {self.seed}")
        count, place = rng.randint(0, 4), rng.randint(0, 3)
        names = [feature.argument for feature in features if feature.argument]
        return model_of(features, names[:count], self.blocks, place)

    def make_scenario(self) -> Scenario:
        """The training loop."""
        return SCENARIOS[self.scenario]()

    @property
    def tags(self) -> tuple[str, ...]:
        """Everything by which cases are counted."""
        named = {
            "offload": self.offload is not None,
            f"offload to {self.offload}": self.offload is not None,
            "save": bool(self.save),
            "every_n": self.every_n > 1,
        }
        return (*self.features, self.scenario, self.mode, *(name for name, given in named.items() if given))

    def __str__(self) -> str:
        """What `parsed` reads."""
        kept = "+".join((self.offload or _NO_OFFLOAD, *self.save))
        options = (self.mode, kept, f"{self.every_n}", f"{self.blocks}")
        return "/".join((f"{self.seed}", *options, self.scenario, "+".join(self.features)))

    @classmethod
    def parsed(cls, text: str) -> Case:
        """The case that a text says: a seed, or what `str` makes of a case. Raises ValueError."""
        if text.isdigit():
            return cls.drawn(int(text))
        seed, mode, kept, every_n, blocks, scenario, names = text.split("/")
        place, *save = kept.split("+")
        store = next((name for name in STORES if name == place), None)
        features = tuple(name for name in names.split("+") if name)
        if mode not in MODES or scenario not in SCENARIOS or not FEATURES.keys() >= set(features):
            raise ValueError(f"{text} names a mode, a training loop or a feature that there is not")
        if store is None and place != _NO_OFFLOAD:
            raise ValueError(f"{text} names a store that there is not")
        return cls(int(seed), _mode(mode), store, int(every_n), int(blocks), features, scenario, tuple(save))


def _mode(name: str) -> Mode:
    return "reentrant" if name == "reentrant" else "non_reentrant"


def _compatible(names: list[str]) -> tuple[str, ...]:
    """The features that can stand together: each once, of those that fill the same argument or output the first."""
    chosen: dict[str, str] = {}
    for name in names:
        kind = FEATURES[name]
        place = kind.argument or ("output" if issubclass(kind, Output) else name)
        if name not in chosen.values():
            chosen.setdefault(place, name)
    return tuple(chosen.values())
