"""The parts of a GPU run, the most telling first, and what became of them. Each is a command that writes one json."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its question, the claim that its targets would prove, its command, and its time.

    `seconds` is what it is expected to take on an H100: where less is left of the run's time, it is skipped. After
    twice as long it is stopped. `arguments` follow the interpreter; `toy` is added for a dry run, `real` otherwise.
    `--out FILE` names the json. Where a package that it `needs` is not installed, it is skipped.
    """

    name: str
    question: str
    claim: str
    arguments: tuple[str, ...]
    seconds: int
    real: tuple[str, ...] = ()
    toy: tuple[str, ...] = ("--toy",)
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]

    @property
    def file(self) -> str:
        """The file of its benchmark."""
        return f"{self.arguments[-1].replace('.', '/')}.py"

    @property
    def limit(self) -> int:
        """The seconds after which it is stopped."""
        return 2 * self.seconds

    def command(self, out: Path, *, dry: bool) -> Sequence[str]:
        """Return the command that runs it and writes `out`."""
        return [sys.executable, *self.arguments, *(self.toy if dry else self.real), "--out", str(out)]


class State(StrEnum):
    """How far a part came. One that waits was not run yet, or the run that ran it was ended."""

    WAITING = "waiting"
    ENDED = "ended"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """A part, its figures by name, and its `problem` where it did not end as it should.

    `no_room` are the measurements for which the device has too little memory, `errors` say why others failed, `notes`
    what was left out, and `failed` names tests.
    """

    part: Part
    state: State = State.WAITING
    problem: str = ""
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    failed: Sequence[str] = ()
    no_room: Sequence[str] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, part: Part, content: Mapping[str, Any]) -> Result:
        """Return the result that a json file holds."""
        return cls(
            part,
            State(content.get("state", State.WAITING)),
            content.get("problem", ""),
            content.get("figures", {}),
            float(content.get("seconds", 0)),
            content.get("failed", ()),
            content.get("no_room", ()),
            content.get("errors", {}),
            content.get("notes", ()),
        )

    @property
    def missed(self) -> list[str]:
        """The names of the figures that miss their targets."""
        return [name for name, figure in self.figures.items() if figure["verdict"] == "missed"]

    @property
    def ran(self) -> bool:
        """Whether the part ended well, with all measurements for which there was room."""
        return self.state is State.ENDED and not self.errors and not self.failed

    @property
    def ok(self) -> bool:
        """Whether it also met its targets."""
        return self.ran and not self.missed


PARTS = (
    Part(
        "tests",
        "Do the tests marked `gpu` pass?",
        "offload, the self-check, `save`, `plan` and `verify` do on a GPU what they do on the processor",
        ("-m", "benchmarks.gpu.tests"),
        120,
        toy=("--dry",),
        needs=("pytest",),
    ),
    Part(
        "offload",
        "What do checkpointing and offload take off the GPU, and at what cost?",
        "both have no higher peak than transformers' own, and offload at 32K tokens costs 3 % of a step at most",
        ("-m", "benchmarks.gpu_steps"),
        190,
        real=("offload",),
        toy=("offload", "--toy"),
    ),
    Part(
        "policies",
        "What does it bring to keep attention, or every second product, and how does that compare to torch's own way?",
        "keeping attention, or every second product, takes no longer than recomputing all, or torch's own policy",
        ("-m", "benchmarks.gpu_steps"),
        200,
        real=("save",),
        toy=("save", "--toy"),
    ),
    Part(
        "check_cost",
        "What do the self-check and the guard cost?",
        "a self-check of every block costs 5 % of a step at most, of one block a step 1 %, and raises no false alarm",
        ("-m", "benchmarks.gpu_steps"),
        80,
        real=("checks",),
        toy=("checks", "--toy"),
    ),
    Part(
        "plan_on_gpu",
        "Does a step take the memory that `explain` says, and is a plan as fast as every n-th block?",
        "`explain` is at most 1 % under `max_memory_allocated` and 3 % over, and a plan as fast as every n-th block",
        ("-m", "benchmarks.plan_on_gpu"),
        300,
        toy=("--toy", "--steps", "1"),
    ),
    Part(
        "host_cost",
        "What does a call of a block cost the host?",
        "a wrapped block's call costs the host little more than transformers' own",
        ("-m", "benchmarks.host_cost"),
        60,
        real=("--gpu",),
    ),
)
