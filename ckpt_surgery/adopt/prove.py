"""Run `verify` on a folder as it is and on a repaired copy of it. This runs the code in the folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckpt_surgery.adopt.proof import ClassProof
from ckpt_surgery.adopt.source import AdoptError, SourceResult
from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LONE_LEVELS
from ckpt_surgery.survey import SurveyProgress, survey
from ckpt_surgery.survey.resolve import resolve_in
from ckpt_surgery.survey.target import SurveyTarget
from ckpt_surgery.survey.worker_pool import WorkerPool, WorkerPoolError

_LARGEST_COPY = 5 * 1024 * 1024
"""Bytes. A larger file, such as weights, is linked instead of copied."""


def prove(
    source: SourceResult,
    *,
    pool: WorkerPool,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    progress: SurveyProgress | None = None,
) -> tuple[ClassProof, ...]:
    """Run both modes and all levels of `verify` on every class of a folder, before and after its repair.

    The folder itself is not changed. Original and copy are examined in separate processes, because importing a module
    may register classes under names that its repaired version would register too.

    Raises:
        AdoptError: the folder cannot be copied.
        TargetError: the configuration names something that cannot be examined.
        WorkerPoolError: no worker can be started.
    """
    original = source.folder.path
    uses: set[str] = set()

    def examine(folder: Path, when: str) -> list[Report]:
        def step(counts: str, done: int, total: int) -> None:
            if progress is not None:
                progress(f"{when}: {counts}" if counts else when, done, total)

        targets = resolve_in(pool, names=[str(folder.absolute())], trust_remote_code=True)
        reports = survey(targets, levels=LONE_LEVELS, workers=workers, timeout=timeout, progress=step, pool=pool)
        for target, report in zip(targets, reports, strict=True):
            if folder != original and report.status != "not built":
                try:
                    uses.update(pool.call(f"{__name__}:class_names", target=target.to_dict()))
                except WorkerPoolError:
                    continue  # it cannot be built again, so none of its classes counts as measured
        examined = f"{folder.resolve()}{os.sep}"  # replaced: reports name the user's folder, not the copy
        return [
            replace(
                report,
                target=str(original),
                facts=replace(report.facts, source=report.facts.source.replace(examined, f"{original}{os.sep}")),
                problem=report.problem.replace(examined, ""),
            )
            for report in reports
        ]

    before = examine(original, "as it is")
    if not source.patches or all(report.status == "not built" for report in before):
        return tuple(map(ClassProof, before))
    with tempfile.TemporaryDirectory(prefix="ckpt_surgery-", ignore_cleanup_errors=True) as temporary:
        copy = Path(temporary).resolve() / source.folder.name
        try:
            shutil.copytree(
                original, copy, ignore=_ignored, copy_function=_copy_or_link, ignore_dangling_symlinks=True
            )
            for name, change in source.patches.items():
                (copy / name).write_bytes(("\ufeff" * change.bom + change.after).encode(change.encoding))
        except OSError as error:
            raise AdoptError(f"{original} cannot be copied: {error.strerror or error}") from None
        after = examine(copy, "after the repair")
    return tuple(ClassProof(*pair, frozenset(uses)) for pair in zip(before, after, strict=True))


def class_names(_emit: object, /, target: dict[str, Any]) -> list[str]:
    """Return the names of the classes of all modules of a target's model, with their base classes."""
    from ckpt_surgery.survey.build import build

    model, *_ = build(SurveyTarget.of(target))
    return sorted({parent.__name__ for module in model.modules() for parent in type(module).__mro__})


def _ignored(folder: str, names: list[str]) -> list[str]:
    """List what is not copied: hidden files, compiled Python, and links to a folder above."""
    own = Path(folder).resolve()
    hidden = [name for name in names if name.startswith(".") or name == "__pycache__"]
    return hidden + [name for name in names if own.is_relative_to(Path(folder, name).resolve())]


def _copy_or_link(source: str, target: str) -> None:
    if source.endswith((".py", ".json")) or os.path.getsize(source) <= _LARGEST_COPY:
        shutil.copyfile(source, target)
    else:
        os.symlink(os.path.realpath(source), target)
