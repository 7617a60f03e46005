"""Examine one target inside a worker: build it, run the reference, examine each mode, report each step.

If a surgery is asked for, the same model is examined after it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from ckpt_surgery.errors import SurgeryError, Unverifiable
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import SURGERY_MODE, Fault, Level, Mode, ModeReport, Repair
from ckpt_surgery.survey.events import Event, Phase, PhaseKind
from ckpt_surgery.survey.file_digests import imported_files
from ckpt_surgery.survey.target import SurveyTarget
from ckpt_surgery.survey.worker_main import Emit, load
from ckpt_surgery.text import error_line, one_line

EXAMINATION = "ckpt_surgery.measure.verify:Examination"
_PHASE_WORDS: Mapping[PhaseKind, str] = {
    PhaseKind.BUILD: "building it",
    PhaseKind.REFERENCE: "the run without checkpointing",
}


def examine(
    emit: Emit,
    /,
    target: dict[str, Any],
    modes: Sequence[Mode],
    levels: str | Sequence[Level],
    fix: bool = False,
    examination: str = EXAMINATION,
    device: str = "",
) -> None:
    """Examine one target in `modes`, and with `fix` also after `wrap_blocks`, all on `device`.

    Emits `phase` as each phase begins; `report` with a `Report` without modes as plain data, whose `problem` says why
    nothing follows if nothing does, and with the digests of the `files` that a factory was read from; `mode` with the
    `run` in one mode; `repair` with a `Repair` that has the table of the surgery or its problem, and then with one
    that has the mode after it.
    """
    subject = SurveyTarget.of(target)
    examiner, report = _begin(emit, subject, levels, examination, device)
    emit(Event.REPORT, report=report.to_dict(), files=imported_files(subject))
    if examiner is None or not report.has_model:
        return
    for mode in () if report.problem else modes:
        _emit_phase(emit, Phase(PhaseKind.MODE, mode))
        emit(Event.MODE, run=_examined(examiner, mode, levels).to_dict())
    if not fix:
        return
    _emit_phase(emit, Phase(PhaseKind.SURGERY))
    repair = Repair()
    try:
        examiner, table = examiner.repaired()
        repair = Repair(surgery=table)
    except (SurgeryError, Unverifiable) as error:
        repair = Repair(problem=one_line(error), refused=isinstance(error, SurgeryError))
    emit(Event.REPAIR, repair=repair.to_dict())
    if not repair.problem:
        _emit_phase(emit, Phase(PhaseKind.MODE_AFTER, SURGERY_MODE))
        run = _examined(examiner, SURGERY_MODE, levels)
        emit(Event.REPAIR, repair=replace(repair, modes=(run,)).to_dict())


def _emit_phase(emit: Emit, phase: Phase) -> None:
    emit(Event.PHASE, kind=phase.kind, mode=phase.mode)


def _examined(examiner: Any, mode: Mode, levels: str | Sequence[Level]) -> ModeReport:
    start = perf_counter()
    try:
        run: ModeReport = examiner.examine(mode)
    except Exception as error:
        run = ModeReport.broken(mode, Fault(FaultKind.STEP_UNFINISHED, details={"error": error_line(error)}), levels)
    return replace(run, seconds=perf_counter() - start)


def _begin(
    emit: Emit, target: SurveyTarget, levels: str | Sequence[Level], examination: str, device: str
) -> tuple[Any, Report]:
    """Return the examination of a target's model after its reference run, None if that failed, and its report."""
    from ckpt_surgery.survey.build import build, moved

    seconds: dict[str, float] = {}
    empty = target.empty_report()
    examiner, report, phase = None, empty, Phase(PhaseKind.BUILD)
    start = perf_counter()
    _emit_phase(emit, phase)
    try:
        model, inputs, switch = build(target)
        model, inputs = moved(model, inputs, device) if device else (model, inputs)
        seconds[phase.name] = perf_counter() - start
        phase, start = Phase(PhaseKind.REFERENCE), perf_counter()
        _emit_phase(emit, phase)
        examiner = load(examination)(model, inputs, levels=levels, **({"switch": switch} if switch else {}))
        report = examiner.reference()
    except Exception as error:
        sentence = one_line(error) if isinstance(error, Unverifiable) else ""
        report = replace(empty, problem=sentence or f"{_PHASE_WORDS[phase.kind]} raised {error_line(error)}")
    seconds[phase.name] = perf_counter() - start
    model_type = target.model_type or report.model_type
    report = replace(report, model_type=model_type, variant=target.variant, target=target.argument, seconds=seconds)
    return examiner, replace(report, facts=replace(report.facts, source=empty.facts.source))
