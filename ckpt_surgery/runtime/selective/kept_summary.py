"""Summarize what a policy kept in a step, as data and in words. This needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt_surgery.text import flops, plural, size, some


@dataclass(frozen=True, slots=True)
class KeptSummary:
    """The results that one name of `save` kept in the last step: how many, and of which operators.

    They add `bytes`, without what the blocks return, which is kept anyway as the input of what follows. They save
    recomputes `flops` floating-point operations. `matched` says whether the blocks have ever run anything of that
    name, and `has_run` whether one of them has run at all. `blocks` is the pattern of the names of those that keep it.
    """

    name: str
    operators: tuple[str, ...]
    results: int
    bytes: int
    flops: int = 0
    matched: bool = True
    has_run: bool = True
    blocks: str = "*"

    def __str__(self) -> str:
        return self.line()

    def line(self, where: str = "") -> str:
        """Return one line of text; `where` says where the results are."""
        name = self.name if self.blocks == "*" else f"{self.name} in {self.blocks}"
        if not self.has_run:
            return f"save {name}: what it keeps is known after a step"
        if not self.matched:
            return f"save {name}: the blocks have run nothing of the kind so far"
        if not self.results:
            return f"save {name}: nothing in the last step"
        kept = f"{plural(self.results, 'result')} in the last step, {size(self.bytes)}{where and ' ' + where}"
        spared = f", {flops(self.flops)} not done again" if self.flops else ""
        return f"save {name}: {kept}{spared}, of {some(self.operators)}"
