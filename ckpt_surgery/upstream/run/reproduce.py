"""`verify` on the model classes of a transformers tree, and imports, run by the checkout's own Python.

What runs there is `examine`; this module starts it and brings the reports back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ckpt_surgery
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.measure.report import Report, report_of
from ckpt_surgery.measure.results import MODES
from ckpt_surgery.static.results import Progress
from ckpt_surgery.upstream.evidence.results import CommandRun
from ckpt_surgery.upstream.layout import classes_of
from ckpt_surgery.upstream.run import examine
from ckpt_surgery.upstream.run.interpreter import LINES, PythonInterpreter

_START = 600.0
"""Seconds that importing torch and transformers may take on a slow disk."""
_POLL = 0.2


@dataclass(frozen=True, slots=True)
class TreeReports:
    """The reports by family, in order of class and variant; none for a family that defines no model class.

    `imported` is the import of the modules that were named, None if none was.
    """

    by_family: Mapping[str, tuple[Report, ...]]
    imported: CommandRun | None = None


def verify_tree(
    python: PythonInterpreter,
    tree: Path,
    families: Sequence[str],
    *,
    modules: Sequence[str] = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> TreeReports:
    """Run `verify` on every model class that these families of a tree define, with the tree's own transformers.

    Modules are imported in a process of their own, which has nothing of the models but what all of them share.

    No process and no file is left behind, also after an interrupt.

    Args:
        python: has torch and what the tree's transformers requires, and needs none of our requirements.
        tree: the top of a checkout; its path does not appear in the reports.
        families: folders of `src/transformers/models` (`gpt_bigcode`), or of `deprecated` below it.
        modules: names of modules to import.
        jobs: worker processes; None for one per core.
        progress: called with the counts by outcome in words, the number of finished classes, and their total.

    Raises:
        UpstreamError: the models cannot be run at all; one sentence says why.
    """
    classes = {family: classes_of(tree, family) for family in families}
    request = {"tree": str(tree), "classes": classes, "modules": list(modules), "jobs": jobs}
    # Each class may have a variant, and is built and run once before its modes.
    phases = 2 * sum(map(len, classes.values())) * (2 + len(MODES))
    with tempfile.TemporaryDirectory(prefix="ckpt_surgery-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        (folder / examine.REQUEST).write_text(json.dumps(request), encoding="utf-8")
        with _no_process_left(folder), _progress_of(folder / examine.PROGRESS, progress):
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
        # The tree is not named: it may be a worktree that is gone when this is read.
        raise UpstreamError(
            f"{python.path} cannot run the checkout's models: {why}; install what the checkout requires for it, "
            "or name another Python with --python"
        )
    by_family = {family: tuple(map(report_of, reports)) for family, reports in answer["reports"].items()}
    if not modules:
        return TreeReports(by_family)
    error = answer["failed_import"]
    command = f'python -c "import {", ".join(modules)}"'
    return TreeReports(by_family, CommandRun(command, int(bool(error)), "\n".join(error.splitlines()[-LINES:])))


def _packages(folder: Path) -> Path:
    """A folder from which our package can be imported, and nothing that is installed beside it."""
    folder.mkdir()
    source = Path(ckpt_surgery.__path__[0]).resolve()
    try:
        (folder / source.name).symlink_to(source, target_is_directory=True)
    except OSError:
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _answer(folder: Path, places: Sequence[Path]) -> dict[str, Any]:
    """The answer without the paths of this machine; empty if there is none."""
    file = folder / examine.ANSWER
    text = file.read_text(encoding="utf-8") if file.is_file() else "{}"
    paths = {str(path) for place in places for path in (place, place.resolve())}
    for path in sorted(paths, key=len, reverse=True):
        text = text.replace(json.dumps(f"{path}/", ensure_ascii=False)[1:-1], "")
    answer: dict[str, Any] = json.loads(text)
    return answer


@contextlib.contextmanager
def _no_process_left(folder: Path) -> Iterator[None]:
    """End the workers if their parent was killed: they notice that by themselves, but only seconds later."""
    try:
        yield
    finally:
        file = folder / examine.TEMPLATE
        if file.is_file() and not (folder / examine.ANSWER).is_file():
            with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
                os.killpg(int(file.read_text(encoding="ascii")), signal.SIGKILL)


@contextlib.contextmanager
def _progress_of(file: Path, progress: Progress | None) -> Iterator[None]:
    """Report the progress that is written to a file, as it comes."""
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
