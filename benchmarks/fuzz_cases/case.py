"""A case: the features, the training loop and the options of one comparison, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.fuzz_cases import arguments, blocks
from benchmarks.fuzz_cases.feature import Feature, Output
from benchmarks.fuzz_cases.loops import LOOPS
from benchmarks.fuzz_cases.model import FuzzModel, model_of
from benchmarks.fuzz_cases.training import FIRST_STEPS

Store = Literal["cpu", "late", "disk"]
"""Where offload puts what it moves: host memory at once, host memory as late as may be, or files."""
STORES: tuple[Store, ...] = ("cpu", "late", "disk")

GROUPS = {**blocks.KINDS, **arguments.KINDS}
FEATURES = {name: feature for group in GROUPS.values() for name, feature in group.items()}
SCENARIOS = {name: loop for group in LOOPS.values() for name, loop in group.items()}
PLAIN_SCENARIO = "OneStep"
KINDS = (*GROUPS, *LOOPS)
KIND_OF = {name: kind for kinds in (GROUPS, LOOPS) for kind, group in kinds.items() for name in group}
"""Every feature and every training loop by its kind and by name."""

_NUMBER_OF_FEATURES = (0, 1, 1, 2, 2, 2, 3, 3, 4, 5)
_PLAIN_LOOPS = ("OneStep", "OneStep", "ThreeSteps", "ThreeSteps", "EightSteps")
_LOOPS_OF_CACHES = ("SummedLosses", "DroppedForward", "ThreeSteps", "Accumulation", "LateSummedLosses")
_KINDS_OF_LOOPS = ("plain",) * 5 + ("steps", "steps", "interruptions", "interruptions", "late", "exceptions")
_SAVES = (("matmul",), ("matmul:2",), ("aten.tanh",), ("matmul", "aten.tanh"))
"""What every block has results of."""


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of a comparison. The seed chooses the variants of features; the rest may change without it.

    Features are live from step `late` on. What a case says to `save` goes to the store of its offload, where it has
    one. With `reentrant` that mode is asked for.
    """

    seed: int
    scenario: str = PLAIN_SCENARIO
    features: tuple[str, ...] = ()
    blocks: int = 2
    late: int = 0
    every_n: int = 1
    first: int = 0
    reentrant: bool = False
    offload: Store | None = None
    save: tuple[str, ...] = ()

    @classmethod
    def drawn(cls, seed: int) -> Case:
        """Return the case of a seed."""
        rng = random.Random(f"case {seed}")
        groups = [rng.choice(list(GROUPS)) for _ in range(rng.choice(_NUMBER_OF_FEATURES))]
        features = _compatible([rng.choice(list(GROUPS[group])) for group in groups])
        with_cache = any(KIND_OF[name] == "caches" for name in features)
        kind = rng.choice(_KINDS_OF_LOOPS)
        loops = _PLAIN_LOOPS if kind == "plain" else tuple(LOOPS[kind])
        scenario = rng.choice(_LOOPS_OF_CACHES if with_cache and rng.random() < 0.5 else loops)
        if KIND_OF[scenario] == "late":
            features = tuple(name for name in features if name not in _NEVER_LATE)
        partly = rng.random() < (0.6 if with_cache else 0.3)
        reentrant = rng.random() < 0.04
        every_n, first = rng.choice(((2, 0), (1, 1))) if partly else (1, 0)
        return cls(
            seed,
            scenario,
            features,
            rng.choice((2, 2, 3, 4)),
            rng.randint(FIRST_STEPS, 8) if KIND_OF[scenario] == "late" else 0,
            every_n,
            first,
            reentrant,
            rng.choice(("late", "late", "cpu", "disk")) if rng.random() < 0.2 else None,
            rng.choice(_SAVES) if not reentrant and rng.random() < 0.15 else (),
        )

    def without(self, feature: str) -> Case:
        """Return the case without one of its features."""
        return replace(self, features=tuple(name for name in self.features if name != feature))

    def simpler(self) -> list[Case]:
        """Cases with one thing less than this one, each: a feature, the training loop, an option, a block."""
        plain = Case(self.seed)
        changes: list[Case] = [
            replace(self, scenario=plain.scenario, late=0),
            replace(self, scenario="LateSteps") if self.late else self,
            replace(self, offload=None),
            replace(self, save=()),
            replace(self, every_n=1),
            replace(self, first=0),
            replace(self, reentrant=False),
            replace(self, blocks=plain.blocks),
        ]
        return [case for case in (*map(self.without, self.features), *changes) if case != self]

    def make_features(self) -> list[Feature]:
        """Return new features for one run."""
        return [FEATURES[name](random.Random(f"{self.seed} {name}")) for name in self.features]

    def make_model(self, features: list[Feature]) -> FuzzModel:
        """Make a new model of these features. Some of its arguments are given by position, the others by keyword."""
        rng = random.Random(f"call {self.seed}")
        count, place = rng.randint(0, 4), rng.randint(0, 3)
        names = [feature.argument for feature in features if feature.argument]
        return model_of(features, names[:count], self.blocks, place)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its features and of its loop."""
        return tuple(dict.fromkeys(KIND_OF[name] for name in (*self.features, self.scenario)))

    @property
    def size(self) -> int:
        """How much there is to a case."""
        return len(self.features) + (self.scenario != PLAIN_SCENARIO) + len(self._options)

    @property
    def _options(self) -> list[str]:
        plain = Case(self.seed)
        numbers = ("blocks", "late", "every_n", "first")
        words = [f"{name}:{getattr(self, name)}" for name in numbers if getattr(self, name) != getattr(plain, name)]
        words += ["reentrant"] * self.reentrant
        words += [f"offload:{self.offload}"] if self.offload else []
        return [*words, *(f"save:{name}" for name in self.save)]

    def __str__(self) -> str:
        """Return what `parsed` reads."""
        return "/".join((f"{self.seed}", self.scenario, "+".join(self.features), "+".join(self._options)))

    @classmethod
    def parsed(cls, text: str) -> Case:
        """Return the case that a text says: a seed, or what `str` makes of a case. Raises ValueError."""
        if text.isdigit():
            return cls.drawn(int(text))
        seed, scenario, names, options = text.split("/")
        features = tuple(filter(None, names.split("+")))
        if scenario not in SCENARIOS or not FEATURES.keys() >= set(features):
            raise ValueError(f"{text} names a training loop or a feature that there is not")
        case = cls(int(seed), scenario, features)
        for word in filter(None, options.split("+")):
            case = case._with(*word.partition(":")[::2])
        return case

    def _with(self, name: str, value: str) -> Case:
        if name in ("blocks", "late", "every_n", "first"):
            return replace(self, **{name: int(value)})  # type: ignore[arg-type]
        if name == "offload" and value in STORES:
            return replace(self, offload=value)
        if name == "save" and value:
            return replace(self, save=(*self.save, value))
        if name != "reentrant":
            raise ValueError(f"{name}:{value} is an option that there is not")
        return replace(self, reentrant=True)


_NEVER_LATE = frozenset({"AutocastAround", "LazyLayer"})
"""In few bits, what began late may round away in the very step in which its block is looked at, and show in others. A
block that makes a module begins anew with its next call, and what else began in that call is not seen."""

_ONCE_FOR_EACH_LAYER = frozenset({"CrossLayerCache", "SameBlockTwice"})
"""Neither stands beside another cache that a model makes: blocks of transformers with such caches run once in each
layer, and the families in which one reads what another has left are known."""


def _compatible(names: list[str]) -> tuple[str, ...]:
    """Choose features that can stand together: each once, of those that fill one argument or output the first."""
    chosen: list[str] = []
    taken: set[str] = set()
    for name in names:
        kind = FEATURES[name]
        places = {name, kind.argument or name, *kind.beside, *(["output"] if issubclass(kind, Output) else [])}
        places |= {"caches"} if name in _ONCE_FOR_EACH_LAYER or KIND_OF[name] == "caches" else set()
        if taken.isdisjoint(places):
            chosen.append(name)
            taken |= places
    return tuple(chosen)
