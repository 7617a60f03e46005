"""The proof: `verify` on the folder as it is, and on a repaired copy of it. The code in the folder is run here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ckpt_surgery.adopt.folder import AdoptError, ModelFolder
from ckpt_surgery.adopt.proof import ClassProof, is_measured
from ckpt_surgery.adopt.source import SourceResult
from ckpt_surgery.adopt.used_classes import used_classes
from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LONE_LEVELS
from ckpt_surgery.survey import SurveyProgress, survey
from ckpt_surgery.survey.resolve import resolve_in
from ckpt_surgery.survey.target import SurveyTarget
from ckpt_surgery.survey.worker_pool import WorkerPool

_LARGEST_COPY = 5 * 1024 * 1024
"""Bytes. A larger file is linked to: weights stay where they are."""
_CODE = (".py", ".json")


def prove(
    source: SourceResult,
    *,
    pool: WorkerPool,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    progress: SurveyProgress | None = None,
) -> tuple[ClassProof, ...]:
    """Run both modes and all levels of `verify` on every class of a folder, before and after its repair.

    The folder itself is not changed. Each of the two is examined in processes of its own, so that what a module
    registers when it is imported does not meet its repaired self.

    Raises:
        AdoptError: the folder cannot be copied.
        TargetError: the configuration names what cannot be examined.
        WorkerPoolError: no worker can be started.
    """

    def resolved(folder: Path) -> list[SurveyTarget]:
        return resolve_in(pool, names=[str(folder.absolute())], trust_remote_code=True)

    def examined(targets: list[SurveyTarget], when: str) -> list[Report]:
        def step(counts: str, done: int, total: int) -> None:
            if progress is not None:
                progress(f"{when}: {counts}" if counts else when, done, total)

        return survey(targets, levels=LONE_LEVELS, workers=workers, timeout=timeout, progress=step, pool=pool)

    original = source.folder
    reports = examined(resolved(original.path), "as it is")
    before = [_of_folder(report, original.path, original) for report in reports]
    if not source.patches or not is_measured(before):
        return tuple(map(ClassProof, before))
    with tempfile.TemporaryDirectory(prefix="ckpt_surgery-", ignore_cleanup_errors=True) as place:
        copy = Path(place).resolve() / original.name
        _copy_repaired(source, copy)
        targets = resolved(copy)
        after = [_of_folder(report, copy, original) for report in examined(targets, "after the repair")]
        built = [report.status != "not built" for report in after]
        uses = [used_classes(pool, target) for target, is_built in zip(targets, built, strict=True) if is_built]
    return tuple(ClassProof(*pair, frozenset().union(*uses)) for pair in zip(before, after, strict=True))


def _of_folder(report: Report, place: Path, folder: ModelFolder) -> Report:
    """A report that names the user's folder, wherever the code was run."""
    own = f"{place.resolve()}{os.sep}"
    return replace(
        report,
        target=str(folder.path),
        facts=replace(report.facts, source=report.facts.source.replace(own, f"{folder.path}{os.sep}")),
        problem=report.problem.replace(own, ""),
    )


def _copy_repaired(source: SourceResult, copy: Path) -> None:
    try:
        for path in _files(source.folder.path):
            _copy_or_link(path, copy / path.relative_to(source.folder.path))
        for patch in source.patches:
            target = copy / patch.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(patch.after)
    except OSError as error:
        raise AdoptError(f"{source.folder.path} cannot be copied: {error.strerror or error}") from None


def _files(root: Path) -> Iterator[Path]:
    """The files of a folder, without hidden folders. A folder that several links lead to counts once."""
    seen: set[str] = set()
    for folder, below, names in os.walk(root, followlinks=True):
        seen.add(os.path.realpath(folder))
        kept = (name for name in below if not name.startswith(".") and name != "__pycache__")
        below[:] = [name for name in kept if os.path.realpath(os.path.join(folder, name)) not in seen]
        yield from (path for name in sorted(names) if (path := Path(folder, name)).is_file())


def _copy_or_link(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in _CODE or path.stat().st_size <= _LARGEST_COPY:
        shutil.copyfile(path, target)
    else:
        target.symlink_to(path.resolve())
