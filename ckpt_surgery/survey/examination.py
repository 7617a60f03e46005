"""One job from beginning to end, inside a worker: build, run the reference, examine each mode, tell as it goes.

With a surgery to be done, the modes are then examined once more, on the same model after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from ckpt_surgery.errors import SurgeryError, Unverifiable
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, MODES, Fault, Level, Mode, ModeReport, Repair
from ckpt_surgery.survey.file_digests import imported_files
from ckpt_surgery.survey.targets import SurveyTarget, target_of
from ckpt_surgery.survey.worker_main import Emit, load, sentence

EXAMINATION = "ckpt_surgery.measure.verify:Examination"
SURGERY = "wrap_blocks"
"""The phase in which the surgery is done, and where need be a run without checkpointing after it."""
AFTER: Mapping[str, Mode] = {f"after {mode}": mode for mode in MODES}
"""The phases in which a mode is examined after the surgery."""


def examine(
    emit: Emit,
    /,
    job: dict[str, Any],
    modes: Sequence[Mode],
    levels: str | Sequence[Level],
    after: Sequence[Mode] = (),
    examination: str = EXAMINATION,
) -> None:
    """Look at one job: at `modes`, and at the modes of `after` once `wrap_blocks` was done.

    Events: `phase` with the name `build`, `reference`, a mode, `wrap_blocks` or `after` and a mode, as it begins;
    `report` with a `Report` without modes as plain data, last where its `problem` says why there is no more, and with
    the digests of the `files` that a factory was read from; `mode` with one that has one mode; `repair` with one whose
    repair has the table of the surgery or its problem, and then with one for each of its modes.
    """
    target = target_of(job)
    empty = Report(target.model, target.model_type, target.variant, target.argument)
    look, report = _begin(emit, empty, target, levels, examination)
    emit("report", report=report.to_dict(), files=imported_files(target))
    if look is None or not examinable(report):
        return
    for mode in () if report.problem else modes:
        emit("phase", name=mode)
        emit("mode", report=replace(empty, modes=(_examined(look, mode, levels),)).to_dict())
    if not after:
        return
    emit("phase", name=SURGERY)
    repair = Repair()
    try:
        look, table = look.repaired()
        repair = Repair(surgery=table)
    except (SurgeryError, Unverifiable) as error:
        repair = Repair(problem=" ".join(str(error).split()))
    emit("repair", report=replace(empty, repair=repair).to_dict())
    for mode in () if repair.problem else after:
        emit("phase", name=f"after {mode}")
        emit("repair", report=replace(empty, repair=replace(repair, modes=(_examined(look, mode, levels),))).to_dict())


def examinable(report: Report) -> bool:
    """Whether there is a model to examine: one that only claims no support has a problem as well."""
    return not (report.problem and report.supported)


def _examined(look: Any, mode: Mode, levels: str | Sequence[Level]) -> ModeReport:
    start = perf_counter()
    try:
        found: ModeReport = look.examine(mode)
    except Exception as error:
        found = broken_mode(mode, Fault("run", "the step to end", sentence(error)), levels)
    return replace(found, seconds=perf_counter() - start)


def _begin(
    emit: Emit, empty: Report, job: SurveyTarget, levels: str | Sequence[Level], examination: str
) -> tuple[Any, Report]:
    """The examination of a job's model after its reference run, and the report so far."""
    from ckpt_surgery.survey.build import build

    seconds: dict[str, float] = {}
    look, report, what = None, empty, "building it"
    start = perf_counter()
    emit("phase", name="build")
    try:
        model, inputs = build(job)
        seconds["build"] = perf_counter() - start
        emit("phase", name="reference")
        what = "the run without checkpointing"
        start = perf_counter()
        look = load(examination)(model, inputs, levels=levels)
        report = look.reference()
        seconds["reference"] = perf_counter() - start
    except Exception as error:
        seconds["reference" if "build" in seconds else "build"] = perf_counter() - start
        report = replace(empty, problem=problem(what, error))
    model_type = job.model_type or report.model_type
    return look, replace(report, model_type=model_type, variant=job.variant, target=job.argument, seconds=seconds)


def problem(what: str, error: Exception) -> str:
    """Why there is no verdict, as one sentence. Errors that are sentences already are taken as they are."""
    if isinstance(error, Unverifiable):
        return " ".join(str(error).split())
    return f"{what} raised {sentence(error)}"


def broken_mode(mode: Mode, fault: Fault, levels: str | Sequence[Level]) -> ModeReport:
    """A mode whose step did not end: the fault is all that is known."""
    chosen = LEVELS if levels == "all" else levels
    outcomes: dict[Level, Any] = {"run": "failed"}
    outcomes |= {level: "skipped" for level in LEVELS if level in chosen and level != "run"}
    return ModeReport(mode, (fault,), outcomes)
