"""The replay: does `apply` make of one transformers release what people made of it by hand in the next?

Prints a table of grades, then every call site and class that is not identical with its reason; writes json.
"""

from __future__ import annotations

import argparse
import gc
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from benchmarks.replay.grade import grade_classes, grade_sites, wanted_by
from benchmarks.replay.report import Replay, as_json, render
from benchmarks.replay.sites import Snapshot, Wanted, read
from benchmarks.replay.tree import Tree
from benchmarks.screen import console_of, progress_bar
from ckpt_surgery.static.results import ApplyResult
from tests.releases import SHA256, ReleaseError, fetch

ROOT = Path(__file__).resolve().parents[2]
Apply = Callable[..., ApplyResult]
_FLAG = re.compile(r"^\s+supports_gradient_checkpointing(: bool)? = True", re.MULTILINE)
PLAIN_WIDTH = 120
WORKERS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the replay. Return 0; 1 where anything is worse or a file was left out; 2 where it could not run."""
    from ckpt_surgery import apply

    parser = argparse.ArgumentParser(prog="replay", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("before", choices=SHA256, help="the release to repair")
    parser.add_argument("after", choices=SHA256, help="the release that people repaired by hand")
    parser.add_argument("--json", type=Path, help="where to write the json (default: out/replay-BEFORE-AFTER.json)")
    parser.add_argument("--limit-family", default="", metavar="X", help="grade one family only, such as gpt2")
    options = parser.parse_args(arguments)
    name = "-".join(filter(None, ("replay", options.before, options.after, options.limit_family)))
    target = options.json or ROOT / "out" / f"{name}.json"
    console = console_of(PLAIN_WIDTH)
    try:
        before, after = (fetch(version) / "models" for version in (options.before, options.after))
        result = replay(before, after, apply, family=options.limit_family)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(as_json(options.before, options.after, result), encoding="utf-8")
    except SyntaxError as error:
        print(f"replay: {error.filename}:{error.lineno} does not parse ({error.msg}).", file=sys.stderr)
        return 2
    except (ReleaseError, FileNotFoundError) as error:
        print(f"replay: {error}.", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"replay: {error.filename or target}: {error.strerror or error}.", file=sys.stderr)
        return 2
    render(console, options.before, options.after, result)
    console.print(f"The json lies in {target}", soft_wrap=True, highlight=False)
    return 1 if result.worse or result.problems else 0


def replay(before: Path, after: Path, apply: Apply, *, family: str = "") -> Replay:
    """Apply the codemods to a copy of the models folder `before` and grade it against the folder `after`.

    Raises FileNotFoundError where a folder holds no modeling file (of the family), SyntaxError where one
    does not parse.
    """
    for folder in (before, after):
        Tree(folder, family)  # fails at once, not after minutes
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        copy = Path(scratch) / "transformers"
        shutil.copytree(before.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        with progress_bar() as progress:
            results = [apply([copy / before.name], unsafe=True, progress=progress)]
            granted = newly_supported(before, after)
            if granted:
                folders = [copy / before.name / name for name in granted]
                results.append(apply(folders, unsafe=True, include_unsupported=True, progress=progress))
        with _status("reading and grading three trees"):
            start = time.perf_counter()
            old, ours, upstream = _read_all(before, copy / before.name, after, family)
            sites = grade_sites(old, ours, upstream)
            classes = grade_classes(old, ours, upstream)
    return Replay(
        before=old,
        ours=ours,
        upstream=upstream,
        sites=tuple(sites),
        classes=tuple(classes),
        problems=tuple(str(problem).replace(f"{copy}/", "") for result in results for problem in result.problems),
        notes=tuple(str(note).replace(f"{copy}/", "") for result in results for note in result.notes),
        changed_files=len({change.path for result in results for change in result.changes}),
        apply_seconds=sum(result.seconds for result in results),
        grade_seconds=time.perf_counter() - start,
    )


def newly_supported(before: Path, after: Path) -> list[str]:
    """The model folders whose support for checkpointing people declared in between.

    That a model supports checkpointing is a decision and no repair: ours is told of it, by
    `include_unsupported` for these folders, and has to make of it what people made.
    """
    return sorted(name for name in _supported(after) - _supported(before) if (before / name).is_dir())


def _supported(models: Path) -> set[str]:
    files = models.glob("*/modeling_*.py")
    return {file.parent.name for file in files if _FLAG.search(file.read_text(encoding="utf-8"))}


def _read_all(before: Path, ours: Path, upstream: Path, family: str) -> tuple[Snapshot, Snapshot, Snapshot]:
    """Read the three folders, the last two side by side."""
    old = _read(before, family, frozenset())
    wanted = wanted_by(old)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        jobs = [pool.submit(_read, folder, family, wanted) for folder in (ours, upstream)]
        return old, jobs[0].result(), jobs[1].result()


def _read(folder: Path, family: str, wanted: Wanted) -> Snapshot:
    # Millions of syntax nodes and no garbage among them: the collector would triple the time.
    gc.disable()
    try:
        return read(folder, family, wanted)
    finally:
        gc.enable()


def _status(text: str) -> AbstractContextManager[object]:
    """A spinner on stderr where that is a terminal."""
    console = Console(stderr=True)
    return console.status(text) if console.is_terminal else nullcontext()
