"""The types for what is read from a training script: signs of several processes, and calls that may be faults there.

They are plain frozen values, made from one file's text by `scripts/` and judged by the rules about training scripts.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.launch_facts import Launch
from ckpt_surgery.codemods.facts.syntax import Argument, Span

SignKind: TypeAlias = Literal[
    "ddp", "group", "launch", "launcher", "accelerate", "arguments", "trainer", "backward", "adapters", "some_adapters"
]
"""`ddp`: wraps a model in DistributedDataParallel. `group`: makes a process group. `launch`: reads LOCAL_RANK or the
like. `launcher`: names `torchrun` or the like. `accelerate`: `accelerator.prepare` and `accelerator.backward`.
`arguments`: options of DistributedDataParallel. `trainer`: a `Trainer` that trains. `backward`: a backward pass.
`adapters`: PEFT adapters are trained. `some_adapters`: they are trained if an option says so."""

RankDependence: TypeAlias = Literal["rank", "gradient"]
"""Why a test may differ between ranks: it depends on the rank, or on whether a parameter has a gradient."""

AskedMode: TypeAlias = Literal["reentrant", "non_reentrant", "default"]
"""`reentrant` and `non_reentrant`: the span is the constant True or False. `default`: the span is a call of torch's
`checkpoint` that leaves the option out."""

SwitchKind: TypeAlias = Literal["method", "argument"]
"""`method`: `model.gradient_checkpointing_enable(...)`. `argument`: `gradient_checkpointing=True` of a Trainer."""


class Spot(NamedTuple):
    """A place: its span, the line on which its statement begins, and its function (`Trainer.fit`, empty outside)."""

    span: Span
    first_line: int
    scope: str


class Sign(NamedTuple):
    """Something that shows how a script runs."""

    kind: SignKind
    text: str
    line: int

    @property
    def place(self) -> str:
        """What it is and its line, as messages name it."""
        reads = "the script reads " if self.kind == "launch" else ""
        return f"{reads}{self.text} on line {self.line}"


class Bypass(NamedTuple):
    """A forward of the module inside a DistributedDataParallel wrapper, on whose result backward runs.

    `inner` is the expression for the module, `method` the method of it that is called; empty if the module itself is.
    `sure`: this file shows that the module was wrapped. `runs`: the call surely runs it, rather than pass it to code
    elsewhere. `backward` is the line of the backward call; 0 if a Trainer of transformers makes it.
    """

    spot: Spot
    callee: str
    inner: str
    method: str
    sure: bool
    runs: bool
    backward: int = 0


class Collective(NamedTuple):
    """A collective that some ranks call and others do not, and the test that decides which.

    `unless` are the parts of the test that make all ranks take the same side if one of them is true.
    """

    spot: Spot
    callee: str
    condition: str
    condition_line: int
    depends_on: RankDependence
    unless: tuple[str, ...] = ()


class SplitLoad(NamedTuple):
    """`from_pretrained(..., device_map="auto")`. `default`: the placement is only the default of an option."""

    spot: Spot
    callee: str
    placement: str
    default: bool


class CheckpointMode(NamedTuple):
    """A setting of `use_reentrant` in a script. `args` are the arguments of a call that leaves the option out."""

    spot: Spot
    callee: str
    mode: AskedMode
    args: tuple[Argument, ...] = ()


class CheckpointSwitch(NamedTuple):
    """A place where a script switches transformers' checkpointing on.

    `options`: it comes with options such as `use_reentrant`. `conditional`: it stands under a test.
    """

    spot: Spot
    text: str
    kind: SwitchKind
    options: bool
    conditional: bool


class ScriptFacts(NamedTuple):
    """All facts of a training script.

    `trainers` are the full names of the Trainers that it makes, or that its own ones extend. `gave_up`: its functions
    call each other too much for its losses to be followed to the end.
    """

    bypasses: tuple[Bypass, ...]
    collectives: tuple[Collective, ...]
    loads: tuple[SplitLoad, ...]
    modes: tuple[CheckpointMode, ...]
    switches: tuple[CheckpointSwitch, ...]
    gave_up: bool
    signs: tuple[Sign, ...] = ()
    launches: tuple[Launch, ...] = ()
    trainers: tuple[str, ...] = ()

    def sign(self, *kinds: SignKind) -> Sign | None:
        """Return the first sign of the first of these kinds that the script has."""
        return next((sign for kind in kinds for sign in self.signs if sign.kind == kind), None)

    @property
    def data_parallel(self) -> Sign | None:
        """What shows that the script trains under DistributedDataParallel, as a launched Trainer does too."""
        surely = self.sign("ddp", "accelerate", "arguments")
        return surely or (self.sign("launch", "launcher", "group") if self.sign("trainer") else None)

    @property
    def several_processes(self) -> Sign | None:
        """What shows that the script trains in several processes, with any wrapper."""
        trains = self.sign("backward", "trainer")
        return self.data_parallel or (self.sign("launch", "launcher", "group") if trains else None)
