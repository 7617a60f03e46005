"""What one training script says, as plain frozen values: signs of several processes, and what goes wrong among them.

No decision is taken here. `extract_script.py` makes these from one file's text; CKPT101 to CKPT104 read them.
"""

from __future__ import annotations

from typing import NamedTuple

from ckpt_surgery.codemods.facts.file_facts import Arg, Span


class Spot(NamedTuple):
    """A place: its span, the line on which its statement begins, and the function that it is in (`Trainer.fit`)."""

    span: Span
    first_line: int
    scope: str


class Sign(NamedTuple):
    """Something that tells how a script runs.

    `kind`: ddp (wraps in DistributedDataParallel), group (makes a process group), launch (reads LOCAL_RANK or the
    like), launcher (names `torchrun` or the like), accelerate (`accelerator.prepare` and `accelerator.backward`),
    arguments (options of DistributedDataParallel), trainer (a `Trainer` that trains), backward (a backward pass).
    """

    kind: str
    text: str
    line: int


class Around(NamedTuple):
    """A forward of the module inside a DistributedDataParallel wrapper, on whose result backward runs.

    `inner` tells how the module was reached; `method` which method of it was called, empty for the module itself;
    `sure` whether this file shows that it was wrapped; `runs` whether
    the call surely runs the module, or only hands it to code elsewhere. `backward` is the line of the backward
    call, or 0 where a Trainer of transformers makes it.
    """

    spot: Spot
    callee: str
    inner: str
    method: str
    sure: bool
    runs: bool
    backward: int


class Collective(NamedTuple):
    """A collective that some ranks call and others do not.

    `condition` is the test that decides, on the line `condition_line`. `kind`: rank (the test asks which rank
    this is) or gradient (it asks whether a parameter has a gradient).
    """

    spot: Spot
    callee: str
    condition: str
    condition_line: int
    kind: str


class SplitLoad(NamedTuple):
    """`from_pretrained(..., device_map="auto")`: whether the placement is only an option's default."""

    spot: Spot
    callee: str
    placement: str
    default: bool


class Reentrant(NamedTuple):
    """Checkpointing with `use_reentrant=True`.

    `kind`: true (the constant `True` stands at the span), default (a call of torch's `checkpoint` that leaves the
    option out; `args` are its arguments) or enable (`gradient_checkpointing_enable()` that leaves it out).
    """

    spot: Spot
    callee: str
    kind: str
    args: tuple[Arg, ...] = ()


class ScriptFacts(NamedTuple):
    """All that a training script says."""

    signs: tuple[Sign, ...]
    arounds: tuple[Around, ...]
    collectives: tuple[Collective, ...]
    loads: tuple[SplitLoad, ...]
    reentrant: tuple[Reentrant, ...]
    gave_up: bool = False
    """Whether the functions of the script call each other too much to follow its losses to the end."""

    def sign(self, *kinds: str) -> Sign | None:
        """The first sign of the first of these kinds that there is any of."""
        return next((sign for kind in kinds for sign in self.signs if sign.kind == kind), None)
