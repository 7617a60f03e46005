"""Reports and adoptions for the tests that judge and show them, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ckpt_surgery.adopt.proof import Adoption, ClassProof
from ckpt_surgery.adopt.source import ModelFolder, SourceResult
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, MODES, Cost, Fault, Level, Mode, ModeReport, Outcome
from tests.measure.fault_cases import fault_at
from tests.zoo.own_code_shapes import write_shape

VERSIONS = {"ckpt-surgery": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"}


def mode_report(mode: Mode, *faults: Fault, skipped: Sequence[Level] = ("ranks",), kept: int = 1024) -> ModeReport:
    failed = {fault.level for fault in faults}
    outcomes: dict[Level, Outcome] = {level: "failed" if level in failed else "ok" for level in LEVELS}
    outcomes |= dict.fromkeys(skipped, "skipped")
    if "run" in failed:
        outcomes = {level: "failed" if level == "run" else "skipped" for level in LEVELS}
    return ModeReport(mode, faults, outcomes, cost=Cost(kept, 8192, 1024, 30, 20, 30, 10))


def report(*runs: ModeReport, name: str = "ToyModel", problem: str = "", supported: bool = True) -> Report:
    return Report(name, "toy_of_mine", modes=runs, problem=problem, supported=supported, versions=VERSIONS)


GOOD = report(*map(mode_report, MODES))
LOST = fault_at("set")
BAD = report(*(mode_report(mode, fault_at("recompute"), LOST, kept=8192) for mode in MODES))
REENTRANT_BAD = report(mode_report("non_reentrant"), mode_report("reentrant", LOST))
UNBUILT = report(problem="no tiny ToyModel can be made: forward raised ValueError: no")
UNSUPPORTED = report(problem="ToyModel says that it does not support gradient checkpointing", supported=False)


def adoption(folder: Path, *proofs: ClassProof, shape: str = "old switch", unsafe: bool = False) -> Adoption:
    """Adopt a folder of that shape, with these proofs."""
    source = SourceResult.of(ModelFolder.read(write_shape(folder, shape)), unsafe=unsafe, cache=False, jobs=1)
    return Adoption(source, proofs, unsafe, VERSIONS)
