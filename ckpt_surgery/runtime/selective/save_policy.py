"""The policy of an option `save`: what it chooses, and what it kept in a step. `kept_results` does the keeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.runtime.selective.policies import (
    RANDOM,
    Choice,
    OperatorRole,
    choices_of,
    in_words,
    operator_name,
    watched_operators,
)
from ckpt_surgery.runtime.selective.watched_operators import watch
from ckpt_surgery.text import listed

_QUESTIONS = "prim"
"""The namespace of operators that only ask a tensor about its device and the like."""


@dataclass(slots=True)
class KeptCount:
    """A number of kept results of one operator, their bytes, and the work to compute them again."""

    results: int = 0
    bytes: int = 0
    flops: int = 0


@dataclass(slots=True, eq=False)
class CountedResult:
    """A result that some choices keep: the work of computing it, and the bytes of each piece of its memory."""

    choices: Sequence[Choice]
    operator: str
    memory: Mapping[Any, int]
    flops: int


@dataclass(slots=True, eq=False)
class KeptOfCall:
    """The results kept by one call of a block. Memory that two results share counts once."""

    block: str
    results: list[CountedResult] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The bytes of all results."""
        memory: dict[Any, int] = {}
        for result in self.results:
            memory |= result.memory
        return sum(memory.values())


@dataclass
class SavePolicy:
    """What some blocks keep, and what they have kept in this step, which begins with a forward after a recompute.

    `save` has the names of what to keep, and `blocks` the pattern of the blocks that do, from the option `save`. Bytes
    are those that the policy adds: what a block returns does not count, since it is kept anyway as an input of what
    follows. Nor does a forward that was dropped before its backward.
    """

    save: tuple[str, ...]
    preserve_rng_state: bool
    blocks: str = "*"
    _calls: list[KeptOfCall] = field(default_factory=list, repr=False)
    _run: Counter[str] = field(default_factory=Counter)
    _waiting: set[str] = field(default_factory=set)
    _matched: set[str] = field(default_factory=set)
    _recomputed: bool = False
    _roles: dict[Any, OperatorRole | None] = field(default_factory=dict, repr=False)
    plans: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._choices = choices_of(self.save)
        self._watch()
        keeps_all = any(choice.name == RANDOM and choice.every == 1 for choice in self._choices)
        self.restores_generators = self.preserve_rng_state and not keeps_all

    def __getstate__(self) -> dict[str, Any]:
        calls = self._calls if self._recomputed else []  # a copy has no forward that waits for its backward
        return {**vars(self), "_roles": {}, "_calls": calls, "plans": {}, "operators": frozenset()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._watch()

    def _watch(self) -> None:
        operators = watched_operators(self._choices)
        self._by_calls = operators is not None
        self.operators = frozenset(map(id, operators or ()))
        for operator in operators or ():
            watch(operator)
        self.keeps_linears = self._by_calls and any(choice.name == "matmul" for choice in self._choices)

    @property
    def by_calls(self) -> bool:
        """Whether to watch only the calls of a few operators: once every block has run, and each name has matched."""
        return self._by_calls and not self._waiting and len(self._matched) == len(self.save)

    @property
    def kept(self) -> dict[tuple[str, str], KeptCount]:
        """The counts of what is kept, by text of `save` and operator name."""
        totals: dict[tuple[str, str], KeptCount] = {}
        for call in self._calls:
            counted: set[tuple[str, Any]] = set()  # memory that results of this call share
            for result in call.results:
                for choice in result.choices:
                    new = {key: size for key, size in result.memory.items() if (choice.text, key) not in counted}
                    counted |= {(choice.text, key) for key in new}
                    total = totals.setdefault((choice.text, result.operator), KeptCount())
                    total.results += 1
                    total.bytes += sum(new.values())
                    total.flops += result.flops
        return totals

    @property
    def bytes(self) -> Counter[str]:
        """The bytes of what is kept, by block name."""
        totals: Counter[str] = Counter()
        for call in self._calls:
            totals[call.block] += call.bytes
        return totals

    @property
    def flops(self) -> int:
        """The floating-point operations that recomputes are spared."""
        return sum(result.flops for call in self._calls for result in call.results)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The texts of `save` that have matched nothing so far."""
        return tuple(text for text in self.save if text not in self._matched)

    def summaries(self) -> Iterator[KeptSummary]:
        """Yield what each text of `save` kept in the last step."""
        for text in self.save:
            counts = {operator: count for (kept_by, operator), count in self.kept.items() if kept_by == text}
            yield KeptSummary(
                text,
                tuple(map(in_words, counts)),
                sum(count.results for count in counts.values()),
                sum(count.bytes for count in counts.values()),
                sum(count.flops for count in counts.values()),
                matched=text in self._matched,
                has_run=bool(self._run),
                blocks=self.blocks,
            )

    def expect(self, blocks: Iterable[str]) -> None:
        """Set the blocks that run under this policy: once all have run, a name without a match is an error."""
        self._waiting = set(blocks)

    def role(self, operator: Any) -> OperatorRole | None:
        """Return the role of an operator in this policy; None if it has none."""
        try:
            return self._roles[operator]
        except KeyError:
            return self._roles.setdefault(operator, OperatorRole.of(operator, self._choices))

    def left_out(self, block: str) -> None:
        """Note that a block runs without checkpointing, so that no match is awaited from it."""
        self._waiting.discard(block)

    def begin(self, block: str) -> None:
        """Note that a forward of a block begins, perhaps of a new step."""
        if self._recomputed:
            self._recomputed = False
            self._calls.clear()
        self._waiting.discard(block)

    def ran(self, operator: Any) -> None:
        """Count an operator for the error that lists them, as long as it may still be raised."""
        wanted = self._waiting or len(self._matched) < len(self.save)
        if wanted and not getattr(operator, "is_view", False) and getattr(operator, "namespace", "") != _QUESTIONS:
            self._run[operator_name(operator)] += 1

    def note(self, call: KeptOfCall) -> None:
        """Note what a block call keeps."""
        if len(self._matched) < len(self.save):
            self._matched |= {choice.text for result in call.results for choice in result.choices}
        self._calls.append(call)

    def dropped(self, call: KeptOfCall) -> None:
        """Note that what a call kept is gone; if no backward has begun, none has used it."""
        if not self._recomputed and call in self._calls:
            self._calls.remove(call)

    def recomputed(self) -> None:
        """Note a recompute. Raises SurgeryError if every block has run and a name has matched nothing."""
        self._recomputed = True
        if self._waiting or not self.unmatched:
            return
        names = listed([repr(text) for text in self.unmatched])
        which = "the blocks" if self.blocks == "*" else f"the blocks of {self.blocks!r}"
        operators = ", ".join(f"{in_words(name)} ({number})" for name, number in self._run.most_common())
        raise SurgeryError(
            f"save names {names}, and {which} run nothing of the kind: leave that out, or name operators that they "
            f"run: {operators}"
        )
