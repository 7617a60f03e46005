"""What the option `save` of a surgery chooses, and what it has kept in a step. `kept_results` keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.policies import (
    RANDOM,
    Choice,
    OperatorRole,
    choices_of,
    in_words,
    operator_name,
    role_of,
)
from ckpt_surgery.text import listed

_QUESTIONS = "prim"
"""The namespace of what asks a tensor without data for its device and the like."""


@dataclass(slots=True)
class KeptCount:
    """How many results of one operator were kept, their bytes, and the work of making them again."""

    results: int = 0
    bytes: int = 0
    flops: int = 0


@dataclass
class SavePolicy:
    """What some blocks of a surgery keep, and kept in the present step: from the first forward after a recompute.

    `save` are the names, and `blocks` the pattern, in the option `save`, by which these blocks keep them. `kept` is by
    text of `save` and name of an operator; `bytes` by name of a block; `flops` are those that recomputes of a block
    do less. Bytes are what the policy adds: memory that two results share counts once, and what a block returns not at
    all, for what follows keeps that anyway.
    """

    save: tuple[str, ...]
    preserve_rng_state: bool
    blocks: str = "*"
    kept: dict[tuple[str, str], KeptCount] = field(default_factory=dict)
    bytes: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    _run: Counter[str] = field(default_factory=Counter)
    _waiting: set[str] = field(default_factory=set)
    _matched: set[str] = field(default_factory=set)
    _recomputed: bool = False
    _counted: dict[str, set[Any]] = field(default_factory=dict, repr=False)
    _roles: dict[Any, OperatorRole | None] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._choices = choices_of(self.save)
        keeps_all = any(choice.name == RANDOM and choice.every == 1 for choice in self._choices)
        self.restores_generators = self.preserve_rng_state and not keeps_all

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_roles": {}}

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The texts of `save` that have matched nothing so far."""
        return tuple(text for text in self.save if text not in self._matched)

    @property
    def has_run(self) -> bool:
        """Whether a block has run under this policy."""
        return bool(self._run)

    def expect(self, blocks: Iterable[str]) -> None:
        """Say which blocks run under this policy: once they all have, a name that matches nothing is an error."""
        self._waiting = set(blocks)

    def role(self, operator: Any) -> OperatorRole | None:
        """What an operator is to this policy."""
        try:
            return self._roles[operator]
        except KeyError:
            return self._roles.setdefault(operator, role_of(operator, self._choices))

    def left_out(self, block: str) -> None:
        """Note that a block runs without checkpointing: whether a name matches is known without it."""
        self._waiting.discard(block)

    def begin(self, block: str) -> None:
        """Note that a block runs for the first time, in this step or another."""
        if self._recomputed:
            self._recomputed = False
            self.kept.clear()
            self.bytes.clear()
            self.flops.clear()
        self._waiting.discard(block)

    def ran(self, operator: Any) -> None:
        """Note an operator for the error that lists them, while that may still be raised."""
        wanted = self._waiting or len(self._matched) < len(self.save)
        if wanted and not getattr(operator, "is_view", False) and getattr(operator, "namespace", "") != _QUESTIONS:
            self._run[operator_name(operator)] += 1

    def note(
        self, block: str, choices: Sequence[Choice], operator: Any, *, memory: Mapping[Any, int], flops: int
    ) -> None:
        """Note a result of a block, made with so many operations, that these choices keep.

        `memory` are the bytes of what it adds, by what tells that from other memory while the block's call is noted.
        """
        for choice in choices:
            self._matched.add(choice.text)
            entry = self.kept.setdefault((choice.text, operator_name(operator)), KeptCount())
            entry.results += 1
            entry.bytes += self._new_bytes(choice.text, memory)
            entry.flops += flops
        self.flops[block] += flops
        self.bytes[block] += self._new_bytes("", memory)

    def ended(self) -> None:
        """Note that all of a call is noted."""
        self._counted.clear()

    def _new_bytes(self, text: str, memory: Mapping[Any, int]) -> int:
        """The bytes of what this call has not counted for a text yet, or for the block."""
        counted = self._counted.setdefault(text, set())
        new = memory.keys() - counted
        counted |= new
        return sum(memory[key] for key in new)

    def recomputed(self) -> None:
        """Note a recompute. Raises SurgeryError where every block has run, and a name has matched nothing."""
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
