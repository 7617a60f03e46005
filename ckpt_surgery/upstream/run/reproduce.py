"""Ask the checkout's own Python which versions it has, and run imports and `verify` in it.

Its workers import this module, and have the checkout's torch and transformers but none of our requirements: only the
standard library and our own package may be imported here.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ckpt_surgery
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.measure.report import Report
from ckpt_surgery.survey import survey
from ckpt_surgery.survey.target import SurveyTarget
from ckpt_surgery.survey.worker_pool import WorkerPool, WorkerPoolError
from ckpt_surgery.upstream.evidence.results import CommandRun
from ckpt_surgery.upstream.layout import classes_of
from ckpt_surgery.upstream.run.interpreter import LINES, PythonInterpreter

if TYPE_CHECKING:
    from ckpt_surgery.static.results import Progress

_VERSIONS = """
import sys, transformers, torch
print("python=%d.%d.%d" % sys.version_info[:3])
print("transformers=" + transformers.__version__)
print("torch=" + torch.__version__)
print("place=" + transformers.__file__)
"""


@dataclass(frozen=True, slots=True)
class TreeReports:
    """The reports by family, in order of class and variant; none for a family that defines no model class.

    `imported` is the run that imported the given modules; None if there were none.
    """

    by_family: Mapping[str, tuple[Report, ...]]
    imported: CommandRun | None = None


def versions_of(python: PythonInterpreter, tree: Path) -> dict[str, str]:
    """Return the versions of python, torch, transformers (the tree's own) and, if there is one, ruff.

    Raises:
        UpstreamError: this Python is too old, cannot import what the tree's models need, or has another transformers.
    """
    ran = python.run(["-c", _VERSIONS], tree, shown="python -c 'import transformers, torch'", timeout=600.0)
    # the message does not name the tree: it may be a worktree that is gone when a user reads this
    if not ran.ok:
        last = ran.output.rpartition("\n")[2]
        raise UpstreamError(
            f"{python.path} cannot import transformers and torch ({last}): install what it needs, in the checkout, "
            f"with {python.path} -m pip install -e '.[torch,testing,quality]', or name another Python with --python"
        )
    answer = dict(line.split("=", 1) for line in ran.output.splitlines()[-4:])
    if tuple(map(int, answer["python"].split(".")))[:2] < (3, 11):
        raise UpstreamError(
            f"{python.path} is Python {answer['python']}, and 3.11 or later is needed: name another one with --python"
        )
    place = answer.pop("place")
    if not place.startswith("./"):
        raise UpstreamError(
            f"{python.path} imports transformers from {place} and not from the checkout: "
            "name a Python that heeds PYTHONPATH with --python"
        )
    ruff = python.tool("ruff", ["--version"], tree)
    return {**answer, "ruff": ruff.output.split()[1]} if ruff.ok else answer


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

    Modules are imported in a separate process. No process and no file is left behind, even after an interrupt.

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
    with tempfile.TemporaryDirectory(prefix="ckpt_surgery-", ignore_cleanup_errors=True) as folder:
        environment = python.environment(tree)
        environment["PYTHONPATH"] += os.pathsep + folder
        environment["TMPDIR"] = folder
        # a link to our package alone, so that nothing installed beside it is imported
        source = Path(ckpt_surgery.__path__[0]).resolve()
        Path(folder, source.name).symlink_to(source, target_is_directory=True)

        def neutral(text: str) -> str:
            return text.replace(f"{tree}/", "").replace(f"{folder}/", "").replace(f"{python.path.parent.parent}/", "")

        try:
            with WorkerPool(python=python.path, environment=environment) as pool:
                by_family = pool.call(f"{__name__}:targets_of", classes=classes)
                try:
                    error = pool.call(f"{__name__}:failed_import", modules=modules) if modules else ""
                except WorkerPoolError as died:
                    error = str(died)
                targets = [SurveyTarget.of(target) for targets in by_family.values() for target in targets]
                reports = survey(targets, workers=jobs, progress=progress, pool=pool)
        except WorkerPoolError as failure:
            raise UpstreamError(
                f"{python.path} cannot run the checkout's models: {neutral(str(failure))}; install what the checkout "
                "requires for it, or name another Python with --python"
            ) from None
    texts = (neutral(json.dumps(report.to_dict(), ensure_ascii=False)) for report in reports)
    named = {
        family: tuple(Report.from_dict(json.loads(next(texts))) for _ in targets)
        for family, targets in by_family.items()
    }
    if not modules:
        return TreeReports(named)
    command = f'python -c "import {", ".join(modules)}"'
    output = "\n".join(neutral(error).splitlines()[-LINES:])
    return TreeReports(named, CommandRun(command, int(bool(error)), output))


def targets_of(_emit: object, /, classes: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Return, by family, the targets of the classes that are models, with their variants, as plain JSON data."""
    from ckpt_surgery.survey.resolve import resolve
    from ckpt_surgery.tiny import model_classes

    models = model_classes()
    return {
        family: [target.to_dict() for target in resolve([name for name in names if name in models])]
        for family, names in classes.items()
    }


def failed_import(_emit: object, /, modules: Sequence[str]) -> str:
    """Return the traceback of the first module that cannot be imported; empty if all can."""
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            inner = error.__traceback__ and error.__traceback__.tb_next
            return "".join(traceback.format_exception(error.with_traceback(inner))).strip()
    return ""
