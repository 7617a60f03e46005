"""The replay: does `apply` make of one transformers release what people made of it by hand in the next?

Prints a table of grades, then every call site and class that is not identical with its reason; writes json.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.figures import console_of
from benchmarks.replay.grade import Comparison, Grade, grade_classes, grade_sites, wanted_by
from benchmarks.replay.sites import Snapshot, Tree, Wanted, read
from ckpt_surgery.cli.terminal import progress_bar
from ckpt_surgery.static.results import ApplyResult
from tests.releases import SHA256, ReleaseError, fetch

ROOT = Path(__file__).resolve().parents[2]
Apply = Callable[..., ApplyResult]
_FLAG = re.compile(r"^\s+supports_gradient_checkpointing(: bool)? = True", re.MULTILINE)
PLAIN_WIDTH = 120
ORDER = (Grade.WORSE, Grade.SAFER, Grade.CHANGED, Grade.HARMLESS, Grade.LEFT_ALONE)


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay: the three trees as read, and every graded site and class. `problems` and `notes` are apply's."""

    before: Snapshot
    ours: Snapshot
    upstream: Snapshot
    sites: tuple[Comparison, ...]
    classes: tuple[Comparison, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changed_files: int = 0
    apply_seconds: float = 0.0
    grade_seconds: float = 0.0

    @property
    def worse(self) -> int:
        """How many sites and classes are worse than upstream's."""
        return sum(item.grade is Grade.WORSE for item in (*self.sites, *self.classes))

    @property
    def comparable(self) -> tuple[Comparison, ...]:
        """The inline branches of BEFORE that upstream replaced by the same call."""
        return tuple(site for site in self.sites if site.comparable)

    @property
    def upstream_left(self) -> Counter[str]:
        """By file: the inline branches of BEFORE that upstream left."""
        return Counter(site.path for site in self.sites if site.upstream_inline)

    @property
    def converted(self) -> dict[str, int]:
        """How many classes of BEFORE became a layer by their own bases, in upstream, in ours and in both."""
        old = {fact.key for fact in self.before.classes if not fact.is_layer_itself}
        mine, theirs = (
            {fact.key for fact in tree.classes if fact.is_layer_itself} & old for tree in (self.ours, self.upstream)
        )
        anyhow = {fact.key for fact in self.ours.classes if fact.is_layer}
        return {
            "upstream": len(theirs),
            "ours": len(mine),
            "both": len(theirs & mine),
            "upstream_only": len(theirs - anyhow),
            "ours_only": len(mine - theirs),
        }


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
        start = time.perf_counter()
        old = _read(before, family)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            jobs = [pool.submit(_read, folder, family, wanted_by(old)) for folder in (copy / before.name, after)]
            ours, upstream = (job.result() for job in jobs)
        sites, classes = grade_sites(old, ours, upstream), grade_classes(old, ours, upstream)
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
    """Return the model folders whose support for checkpointing people declared in between.

    That a model supports checkpointing is a decision and no repair: ours is told of it, by
    `include_unsupported` for these folders, and has to make of it what people made.
    """
    return sorted(name for name in _supported(after) - _supported(before) if (before / name).is_dir())


def _supported(models: Path) -> set[str]:
    files = models.glob("*/modeling_*.py")
    return {file.parent.name for file in files if _FLAG.search(file.read_text(encoding="utf-8"))}


def _read(folder: Path, family: str, wanted: Wanted = frozenset()) -> Snapshot:
    # Millions of syntax nodes and no garbage among them: the collector would triple the time.
    gc.disable()
    try:
        return read(folder, family, wanted)
    finally:
        gc.enable()


def render(console: Console, before: str, after: str, result: Replay) -> None:
    """Print the whole report."""
    console.print(_table(before, after, result))
    for line in _counts(before, after, result):
        console.print(Text(line), soft_wrap=True)
    for line in _differences(result):
        console.print(Text(line), soft_wrap=True)


def _table(before: str, after: str, result: Replay) -> Table:
    columns = {
        "comparable inline branches": result.comparable,
        "all inline branches": [site for site in result.sites if site.inline],
        "plain calls": [site for site in result.sites if not site.inline],
        "classes": result.classes,
    }
    grid = Table(title=f"{before} repaired by codemods against {after}", title_style="bold")
    grid.add_column("grade", no_wrap=True)
    counts = {name: Counter(item.grade for item in items) for name, items in columns.items()}
    for name in columns:
        grid.add_column(name, justify="right")
    for grade in Grade:
        style = "bold red" if grade is Grade.WORSE and result.worse else ""
        grid.add_row(grade, *(str(count[grade] or "") for count in counts.values()), style=style)
    grid.add_section()
    grid.add_row("all", *(str(len(items)) for items in columns.values()), style="bold")
    return grid


def _counts(before: str, after: str, result: Replay) -> Iterator[str]:
    real = sum(site.switched for site in result.before.sites)
    files = len({site.path for site in result.before.sites if site.switched})
    left = sum(site.switched for site in result.ours.sites)
    yield f"Inline branches: {real} in {files} files of {before}; {left} left in ours."
    counts = ", ".join(f"{path} {count}" for path, count in result.upstream_left.items()) or "none"
    yield f"Left by upstream in {after}: {counts}."
    count = result.converted
    yield (
        f"Classes made a layer: {count['upstream']} upstream, {count['ours']} in ours, {count['both']} in both; "
        f"{count['upstream_only']} of upstream's are none in ours, {count['ours_only']} are layers only in ours."
    )
    yield (
        f"Checkpoint calls of any kind: {result.before.inline.total()} before, {result.ours.inline.total()} in ours, "
        f"{result.upstream.inline.total()} upstream."
    )
    times = f"{result.apply_seconds:.1f} s to apply, {result.grade_seconds:.1f} s to read and grade"
    yield f"Files changed: {result.changed_files}; {times}."
    yield from (f"problem: {problem}" for problem in result.problems)
    yield from (f"note: {note}" for note in result.notes)


def _differences(result: Replay) -> Iterator[str]:
    everything = (*result.classes, *result.sites)
    for grade in ORDER:
        items = [item for item in everything if item.grade is grade]
        if items:
            yield f"\n{grade.upper()} ({len(items)})"
        for item in items:
            yield from _lines(item)
    noted = [item for item in everything if item.notes and item.grade is Grade.IDENTICAL]
    if noted:
        yield f"\nIDENTICAL, AND BOTH LEAVE SOMETHING ({len(noted)})"
    for item in noted:
        yield from _lines(item)


def _lines(item: Comparison) -> Iterator[str]:
    yield f"{item.path}:{item.line} {item.class_name}: {'; '.join((*item.reasons, *item.notes))}"
    shown = [("before", item.before), ("ours", item.ours), ("upstream", item.upstream)]
    for name, text in shown if item.ours != item.before else shown[1:]:
        yield f"    {name:<9} {text or '(gone)'}"


def as_json(before: str, after: str, result: Replay) -> str:
    """Return the report as json: the same figures, and every site and class with its grade."""
    figures = {
        "before": before,
        "after": after,
        "worse": result.worse,
        "comparable": {"all": len(result.comparable), **_grades(result.comparable)},
        "inline": _grades(site for site in result.sites if site.inline),
        "plain_calls": _grades(site for site in result.sites if not site.inline),
        "classes": _grades(result.classes),
        "converted": result.converted,
        "inline_branches": {
            "before": sum(site.switched for site in result.before.sites),
            "ours": sum(site.switched for site in result.ours.sites),
            "upstream_left": dict(result.upstream_left),
        },
        "changed_files": result.changed_files,
        "apply_seconds": round(result.apply_seconds, 2),
        "grade_seconds": round(result.grade_seconds, 2),
        "problems": list(result.problems),
        "notes": list(result.notes),
        "sites": [asdict(site) for site in result.sites],
        "changed_classes": [asdict(item) for item in result.classes],
    }
    return json.dumps(figures, indent=1) + "\n"


def _grades(items: Iterable[Comparison]) -> dict[str, int]:
    return {str(grade): count for grade, count in sorted(Counter(item.grade for item in items).items())}
