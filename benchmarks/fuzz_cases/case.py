"""A case: the features, the training loop and the options of one comparison, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any, Literal

from benchmarks.fuzz_cases import arguments, blocks
from benchmarks.fuzz_cases.loops import FIRST_STEPS, LOOPS
from benchmarks.fuzz_cases.model import Feature, FuzzModel, Output, model_of

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
_SAVES = ("matmul", "matmul:2", "aten.tanh")
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
    save: str = ""

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
        is_late = KIND_OF[scenario] == "late"
        if is_late:  # in few bits, what is late may round away in the step in which its block is looked at
            features = tuple(name for name in features if name != "AutocastAround")
        every_n, first = rng.choice(((2, 0), (1, 1))) if rng.random() < (0.6 if with_cache else 0.3) else (1, 0)
        reentrant = rng.random() < 0.04
        return cls(
            seed,
            scenario,
            features,
            blocks=rng.choice((2, 2, 3, 4)),
            late=rng.randint(FIRST_STEPS, 8) if is_late else 0,
            every_n=every_n,
            first=first,
            reentrant=reentrant,
            offload=rng.choice(("late", "late", "cpu", "disk")) if rng.random() < 0.2 else None,
            save=rng.choice(_SAVES) if not reentrant and rng.random() < 0.15 else "",
        )

    def make_features(self) -> list[Feature]:
        """Return new features for one run."""
        return [FEATURES[name](random.Random(f"{self.seed} {name}")) for name in self.features]

    def make_model(self, features: list[Feature]) -> FuzzModel:
        """Make a new model of these features. Some of its arguments are given by position, the others by keyword."""
        names = [feature.argument for feature in features if feature.argument]
        return model_of(features, names[: random.Random(f"call {self.seed}").randint(0, 4)], self.blocks)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its features and of its loop."""
        return tuple(dict.fromkeys(KIND_OF[name] for name in (*self.features, self.scenario)))

    @property
    def is_late(self) -> bool:
        """Whether something begins late."""
        return KIND_OF[self.scenario] == "late"

    def __str__(self) -> str:
        """Return what `parsed` reads."""
        options = {name: getattr(self, name) for name, plain in _OPTIONS.items() if getattr(self, name) != plain}
        words = [f"{name}:{value}" for name, value in options.items()]
        return "/".join((f"{self.seed}", self.scenario, "+".join(self.features), "+".join(words)))

    @classmethod
    def parsed(cls, text: str) -> Case:
        """Return the case that a text says: a seed, or what `str` makes of a case. Raises ValueError."""
        if text.isdigit():
            return cls.drawn(int(text))
        seed, scenario, names, words = text.split("/")
        features = tuple(filter(None, names.split("+")))
        said = {name: value for name, _, value in (word.partition(":") for word in words.split("+") if word)}
        known = said.get("offload", "cpu") in STORES and _OPTIONS.keys() >= said.keys()
        if not known or scenario not in SCENARIOS or not FEATURES.keys() >= set(features):
            raise ValueError(f"{text} names a training loop, a feature or an option that there is not")
        options: dict[str, Any] = {
            name: str(value) if name == "offload" else type(_OPTIONS[name])(value) for name, value in said.items()
        }
        return cls(int(seed), scenario, features, **options)


_OPTIONS: dict[str, Any] = {each.name: each.default for each in fields(Case)[3:]}
"""The options of a case, and what they are where it names none."""


def _compatible(names: list[str]) -> tuple[str, ...]:
    """Choose features that can stand together: each once, of those that fill one argument or output the first.

    A block that stands at two places has no cache: its keys would be those of one layer.
    """
    chosen: list[str] = []
    taken: set[str] = set()
    for name in names:
        kind = FEATURES[name]
        places = {name, kind.argument or name, *kind.beside, *(["output"] if issubclass(kind, Output) else [])}
        places |= {"layers"} if name == "SameBlockTwice" or KIND_OF[name] == "caches" else set()
        if taken.isdisjoint(places):
            chosen.append(name)
            taken |= places
    return tuple(chosen)
