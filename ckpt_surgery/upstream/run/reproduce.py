"""`verify` on the model classes of a transformers tree, run by the checkout's own Python, and two such runs compared.

What runs there is `examine`; this module sends it there, brings the reports back and makes rows of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ckpt_surgery
import ckpt_surgery.codemods
import ckpt_surgery.model_patches
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.measure.report import Report, report_of
from ckpt_surgery.measure.results import LEVELS, MODES, Mode, ModeReport
from ckpt_surgery.static.results import Progress
from ckpt_surgery.upstream.evidence.results import Row
from ckpt_surgery.upstream.plan.layout import classes_of
from ckpt_surgery.upstream.run import examine
from ckpt_surgery.upstream.run.interpreter import Interpreter

_START = 600.0
"""Seconds that importing torch and transformers may take on a slow disk."""
_POLL = 0.2


def verify_tree(
    python: Interpreter,
    tree: Path,
    families: Sequence[str],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, tuple[Report, ...]]:
    """Run `verify` on every model class that some families of a tree define, with the tree's own transformers.

    No process and no file is left, also after an interrupt.

    Args:
        python: has torch and what the tree's transformers requires, and need not have anything of ours.
        tree: the top of a checkout; its path does not appear in the reports.
        families: folders of `src/transformers/models` (`gpt_bigcode`), or of `deprecated` below it.
        jobs: worker processes; None for one a core.
        progress: called with counts by outcome in words, the number of finished classes, and of all.

    Returns:
        The reports by family, in order of class and variant; none for a family that defines no model class.

    Raises:
        UpstreamError: the models cannot be run at all; one sentence says why.
    """
    classes = {family: classes_of(tree, family) for family in families}
    request = {"tree": str(tree), "classes": classes, "jobs": jobs}
    # each class may have a variant, and is built and run once before its modes
    phases = 2 * sum(map(len, classes.values())) * (2 + len(MODES))
    with tempfile.TemporaryDirectory(prefix="ckpt_surgery-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        (folder / examine.REQUEST).write_text(json.dumps(request), encoding="utf-8")
        with _no_process_left(folder), _heard(folder / examine.PROGRESS, progress):
            ran = python.run(
                ["-m", examine.__name__, str(folder)],
                tree,
                shown=f"ckpt_surgery verify {' '.join(families)}",
                timeout=_START + phases * TIMEOUT,
                extra_path=(_packages(folder / "packages"),),
                env={"PYTHONSAFEPATH": "1", "TMPDIR": str(folder)},
            )
        answer = _answer(folder, (tree, folder, python.path.parent.parent))
    if "reports" not in answer:
        last = ran.output.rpartition("\n")[2]
        why = answer.get("problem") or f"it ended with exit code {ran.code}: {last}"
        # not the tree: it may be a worktree that is gone when this is read
        raise UpstreamError(
            f"{python.path} cannot run the checkout's models: {why}; install what the checkout requires for it, "
            "or name another Python with --python"
        )
    return {family: tuple(map(report_of, reports)) for family, reports in answer["reports"].items()}


def _packages(folder: Path) -> Path:
    """A folder from which our package can be imported, and nothing that happens to be installed beside it."""
    folder.mkdir()
    source = Path(ckpt_surgery.__path__[0]).resolve()
    try:
        (folder / source.name).symlink_to(source, target_is_directory=True)
    except OSError:
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _answer(folder: Path, places: Sequence[Path]) -> dict[str, Any]:
    """What was answered, the paths of this machine left out; empty where nothing was."""
    file = folder / examine.ANSWER
    text = file.read_text(encoding="utf-8") if file.is_file() else "{}"
    found = {str(path) for place in places for path in (place, place.resolve())}
    for path in sorted(found, key=len, reverse=True):
        text = text.replace(json.dumps(f"{path}/", ensure_ascii=False)[1:-1], "")
    answer: dict[str, Any] = json.loads(text)
    return answer


@contextlib.contextmanager
def _no_process_left(folder: Path) -> Iterator[None]:
    """End the workers where what started them was killed: they notice it themselves, but only some seconds later."""
    try:
        yield
    finally:
        file = folder / examine.TEMPLATE
        if file.is_file() and not (folder / examine.ANSWER).is_file():
            with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
                os.killpg(int(file.read_text(encoding="ascii")), signal.SIGKILL)


@contextlib.contextmanager
def _heard(file: Path, progress: Progress | None) -> Iterator[None]:
    """Hand on the progress that is written to a file, as it comes."""
    if progress is None:
        yield
        return
    ended = threading.Event()

    def listen() -> None:
        seen, over = 0, False
        while not over:
            over = ended.wait(_POLL)
            lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
            if len(lines) > seen:
                progress(*json.loads(lines[-1]))
                seen = len(lines)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        ended.set()
        listener.join()


# --- two runs compared ------------------------------------------------------------------------------------


def rows_of(family: str, before: Sequence[Report], after: Sequence[Report]) -> tuple[Row, ...]:
    """One row for each class, with its variant, and mode, in that order.

    A class that was run before and cannot be run after fails at the level `run` there, with the reason: its row is
    worse. Where there is no verdict before, or on neither side, the row has a `problem`.
    """
    known = [{report.label: report for report in reports} for reports in (before, after)]
    labels = sorted({label for side in known for label in side})
    return tuple(_row(family, label, mode, *(side.get(label) for side in known)) for label in labels for mode in MODES)


def reproduced(rows: Sequence[Row]) -> bool:
    """Whether a fault was seen before that is gone after."""
    return any(row.better for row in rows)


def _row(family: str, label: str, mode: Mode, before: Report | None, after: Report | None) -> Row:
    then, now = _seen(before, mode), _seen(after, mode)
    row = Row(
        family=family,
        model=label,
        mode=mode,
        before=_levels(then),
        after=_levels(now, _levels(then)),
        faults_before=_sentences(then),
        faults_after=_sentences(now),
        kept_before=_kept(then),
        kept_after=_kept(now),
    )
    lack, lack_now = _lack(label, before, mode), _lack(label, after, mode)
    if lack_now and (not lack or (_built(before) and not _built(after))):
        # nothing that failed before counts as repaired, and what did not end before is not made worse by not starting
        levels = row.before if "run" in row.before else ("run",)
        return replace(row, after=levels, faults_after=(lack_now,), kept_after=0)
    unclaimed = then is not None and now is not None  # measured all the same: what is worse is not to be hidden
    if not (lack or lack_now) or (unclaimed and row.verdict == "worse"):
        return row
    told = [f"on the {side}: {why}" for side, why in (("base", lack), ("series", lack_now)) if why]
    return replace(row, problem=lack if lack == lack_now else "; ".join(told))


def _seen(report: Report | None, mode: Mode) -> ModeReport | None:
    return next((one for one in report.modes if one.mode == mode), None) if report else None


def _built(report: Report | None) -> bool:
    """Whether the class was built, although it may say that it supports no checkpointing."""
    return report is not None and report.status != "not built"


def _lack(label: str, report: Report | None, mode: Mode) -> str:
    """Why there is no verdict; empty where there is one."""
    if report is None:
        return f"there is no {label}"
    if not report.supported:
        return f"{report.model} says that it does not support gradient checkpointing"
    if _seen(report, mode) is None:
        return report.problem or f"it was not examined with {mode}"
    return ""


def _levels(mode: ModeReport | None, before: Sequence[str] = ()) -> tuple[str, ...]:
    """The levels that failed; of those that failed before, those too that were not come to."""
    if mode is None:
        return ()
    failed = {fault.level for fault in mode.faults}
    skipped = {level for level in LEVELS if level in before and mode.outcomes.get(level) == "skipped"}
    return tuple(level for level in LEVELS if level in failed | skipped)


def _sentences(mode: ModeReport | None) -> tuple[str, ...]:
    return tuple(map(str, mode.faults)) if mode else ()


def _kept(mode: ModeReport | None) -> int:
    return mode.cost.kept_bytes if mode and mode.cost else 0
