"""Many models, one report each, whatever one of them does: it may crash, hang or eat the memory."""

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
from ckpt_surgery.measure.results import MODES, Level, Mode, Repair
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.survey.examination import EXAMINATION
from ckpt_surgery.survey.resume import ResumeFile
from ckpt_surgery.survey.scheduler import Scheduler, SurveyJob, SurveyOptions
from ckpt_surgery.survey.targets import SurveyTarget, checked_timeout, part_of
from ckpt_surgery.survey.worker_pool import WorkerPool

Progress = Callable[[str, int, int], None]


def survey(
    jobs: Sequence[SurveyTarget],
    *,
    modes: Sequence[Mode] = MODES,
    levels: str | Sequence[Level] = "all",
    fix: bool = False,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    resume: Path | None = None,
    shard: tuple[int, int] | None = None,
    progress: Progress | None = None,
    pool: WorkerPool | None = None,
    examination: str = EXAMINATION,
) -> list[Report]:
    """Look at every job in worker processes, and return their reports in the order of the jobs.

    A mode that does not end within `timeout` seconds, or whose process dies, is a fault of level `run` in its
    report, and the other modes are examined in a fresh process. Where building the model or its run without
    checkpointing ends like that, the report has a `problem`.

    Args:
        jobs: what `targets.resolve` made.
        modes, levels: what to look at, as in `verify`.
        fix: whether to look at the same modes again after `wrap_blocks`, on the same model.
        workers: processes at a time; None for one a core. Each may take up to 2 GB.
        timeout: seconds for the building, the reference run and each mode, each on its own; a day at most.
        resume: a file in which finished reports are kept as they come; what is in it already is not done again,
            unless the files of the model have changed or it has more time now to end.
        shard: (i, n) for part `i` of `n` of the jobs, counted from 1.
        progress: called with counts by outcome in words, the number of finished jobs, and of all.
        pool: where workers come from; one is made, and ended, where there is none.
        examination: `package.module:class` of what examines a model.

    Raises:
        TargetError: `timeout` is no time limit.
        ResumeError: the file of `resume` is not one that can be gone on with.
        WorkerPoolError: no worker can be started.
    """
    chosen = part_of(jobs, shard) if shard else list(jobs)
    known = installed_versions()
    limit = checked_timeout(timeout)
    plan = SurveyOptions(tuple(modes), levels if isinstance(levels, str) else tuple(levels), limit, examination)
    reports: dict[int, Report] = {}
    works = [SurveyJob(index, job, plan.modes, repair=Repair() if fix else None) for index, job in enumerate(chosen)]
    with ExitStack() as stack:
        kept = None
        if resume is not None:
            settings = {"versions": known, "modes": plan.modes, "levels": plan.levels, "fix": "yes" if fix else "no"}
            kept = stack.enter_context(ResumeFile(resume, settings, timeout))
            reports = {work.index: report for work in works if (report := kept.report(work.job)) is not None}

        def done(work: SurveyJob) -> None:
            report = work.report()
            report = report if report.versions else replace(report, versions=known)
            reports[work.index] = report
            if kept is not None:
                kept.add(work.job, report, files=work.files, stopped_after=work.stopped_after)
            _tell(progress, reports, len(works))

        _tell(progress, reports, len(works))
        left = [work for work in works if work.index not in reports]
        if left:
            home = pool or stack.enter_context(WorkerPool())
            Scheduler(home, left, plan, min(workers or cores(), len(left)), done).run()
    return [reports[work.index] for work in works]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tell(progress: Progress | None, reports: dict[int, Report], total: int) -> None:
    if progress is not None:
        counts = Counter(report.status for report in reports.values())
        words = [f"{counts[status]} {status}" for status in get_args(Status) if counts[status]]
        progress(", ".join(words), len(reports), total)
