"""Survey many models, with one report each. One may crash, hang or exhaust the memory without harm to the others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import get_args

from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.measure.report import Report, Status
from ckpt_surgery.measure.results import MODES, QUICK_LEVELS, Level, Mode, Repair
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.survey.examination import EXAMINATION
from ckpt_surgery.survey.job import SurveyJob
from ckpt_surgery.survey.resume import ResumeFile
from ckpt_surgery.survey.scheduler import Scheduler
from ckpt_surgery.survey.target import SurveyOptions, SurveyTarget, checked_timeout, part_of
from ckpt_surgery.survey.worker_pool import WorkerPool

SurveyProgress = Callable[[str, int, int], None]


def survey(
    targets: Sequence[SurveyTarget],
    *,
    modes: Sequence[Mode] = MODES,
    levels: str | Sequence[Level] = QUICK_LEVELS,
    fix: bool = False,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    resume: Path | None = None,
    shard: tuple[int, int] | None = None,
    progress: SurveyProgress | None = None,
    pool: WorkerPool | None = None,
    examination: str = EXAMINATION,
    device: str = "",
) -> list[Report]:
    """Examine every target in worker processes, and return the reports in the order of the targets.

    A mode that exceeds `timeout`, or whose process dies, is a fault of level `run` in its report; the other modes are
    examined in a fresh process. If that happens while the model is built or run without checkpointing, the report has
    a `problem`. A model that exceeds `timeout` beside others is examined again, alone, before that is reported.

    Args:
        targets: what `resolve.resolve` returned.
        modes, levels: what to examine, as in `verify`; by default not the levels that take the most steps.
        fix: whether to examine the model after `wrap_blocks` too.
        workers: processes at a time; None for one per core. Each may take up to 2 GB.
        timeout: seconds for the build, the reference run and each mode, each on its own; a day at most.
        resume: a file to which finished reports are appended. Targets in it are not examined again, unless the files
            of the model have changed or a target that ran out of time now has more.
        shard: (i, n) for part `i` of `n` of the targets, counted from 1.
        progress: called with the counts by outcome in words, the number of finished targets, and that of all.
        pool: where workers come from; by default one is made and closed.
        examination: `package.module:class` of what examines a model.
        device: where models run, such as "cuda"; empty for where they are built. `resolve_in` checks that it exists.

    Raises:
        TargetError: `timeout` is not a time limit.
        ResumeError: the survey cannot be resumed from the file.
        WorkerPoolError: no worker can be started.
    """
    levels = levels if isinstance(levels, str) else tuple(levels)
    options = SurveyOptions(tuple(modes), levels, checked_timeout(timeout), examination, device)
    chosen = part_of(targets, shard) if shard else list(targets)
    versions = installed_versions()
    jobs = [SurveyJob(index, each, options, repair=Repair() if fix else None) for index, each in enumerate(chosen)]
    reports: dict[int, Report] = {}
    with ExitStack() as stack:
        file = None
        if resume is not None:
            settings = {"versions": versions, "modes": options.modes, "levels": levels, "fix": "yes" if fix else "no"}
            settings |= {"device": device} if device else {}
            file = stack.enter_context(ResumeFile(resume, settings, timeout))
            reports = {job.index: report for job in jobs if (report := file.report(job.target)) is not None}

        def show() -> None:
            if progress is not None:
                counts = Counter(report.status for report in reports.values())
                words = [f"{counts[status]} {status}" for status in get_args(Status) if counts[status]]
                progress(", ".join(words), len(reports), len(jobs))

        def finished(job: SurveyJob) -> None:
            report = job.report()
            report = report if report.versions else replace(report, versions=versions)
            reports[job.index] = report
            if file is not None:
                file.add(job.target, report, files=job.files, stopped_after=job.stopped_after)
            show()

        show()
        left = [job for job in jobs if job.index not in reports]
        if left:
            pool = pool or stack.enter_context(WorkerPool())
            Scheduler(pool, left, min(workers or cores(), len(left)), finished).run()
    return [reports[job.index] for job in jobs]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
