"""The replay: does `apply` make of one transformers release what people made of it by hand in the next?

    python -m benchmarks.replay BEFORE AFTER

Prints a table of grades, then every call site and class that is not identical with its reason.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.replay.grade import Comparison, Grade, grade_classes, grade_sites, wanted_by
from benchmarks.replay.sites import Tree, read
from ckpt_surgery.cli.terminal import progress_bar
from ckpt_surgery.static.results import ApplyResult
from ckpt_surgery.text import text_table
from tests.releases import SHA256, ReleaseError, fetch

Apply = Callable[..., ApplyResult]
_FLAG = "supports_gradient_checkpointing"
ORDER = (Grade.WORSE, Grade.SAFER, Grade.CHANGED, Grade.HARMLESS, Grade.LEFT_ALONE)


@dataclass(frozen=True, slots=True)
class Replay:
    """Every graded site and class. `left` counts our inline branches; `problems` and `notes` are apply's."""

    sites: Sequence[Comparison]
    classes: Sequence[Comparison]
    left: int
    problems: Sequence[str]
    notes: Sequence[str]

    @property
    def worse(self) -> int:
        """How many sites and classes are worse than upstream's."""
        return sum(item.grade is Grade.WORSE for item in (*self.sites, *self.classes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the replay. Return 0; 1 where anything is worse or a file was left out; 2 where it could not run."""
    from ckpt_surgery import apply

    parser = argparse.ArgumentParser(prog="replay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", choices=SHA256, help="the release to repair")
    parser.add_argument("after", choices=SHA256, help="the release that people repaired by hand")
    options = parser.parse_args(arguments)
    try:
        before, after = (fetch(version) / "models" for version in (options.before, options.after))
        result = replay(before, after, apply)
    except SyntaxError as error:
        print(f"replay: {error.filename}:{error.lineno} does not parse ({error.msg}).", file=sys.stderr)
        return 2
    except (ReleaseError, FileNotFoundError) as error:
        print(f"replay: {error}.", file=sys.stderr)
        return 2
    print(f"{options.before} repaired by codemods against {options.after}:")
    print(*table(result), *report(result), sep="\n")
    return 1 if result.worse or result.problems else 0


def replay(before: Path, after: Path, apply: Apply) -> Replay:
    """Apply the codemods to a copy of the models folder `before` and grade it against the folder `after`.

    Raises FileNotFoundError where a folder holds no modeling file, SyntaxError where one does not parse.
    """
    for folder in (before, after):
        Tree(folder)  # fails at once, not after minutes
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        copy = Path(scratch) / "transformers"
        shutil.copytree(before.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        with progress_bar() as progress:
            results = [apply([copy / before.name], unsafe=True, progress=progress)]
            if granted := newly_supported(before, after):
                folders = [copy / before.name / name for name in granted]
                results.append(apply(folders, unsafe=True, include_unsupported=True, progress=progress))
        old = read(before)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            jobs = [pool.submit(read, folder, wanted_by(old)) for folder in (copy / before.name, after)]
            ours, upstream = (job.result() for job in jobs)
    return Replay(
        grade_sites(old, ours, upstream),
        grade_classes(old, ours, upstream),
        sum(site.switched for site in ours.sites),
        [str(problem).replace(f"{copy}/", "") for result in results for problem in result.problems],
        [str(note).replace(f"{copy}/", "") for result in results for note in result.notes],
    )


def newly_supported(before: Path, after: Path) -> list[str]:
    """Return the model folders whose support for checkpointing people declared in between.

    That a model supports checkpointing is a decision and no repair: ours is told of it, by
    `include_unsupported` for these folders, and has to make of it what people made.
    """
    return sorted(name for name in _supported(after) - _supported(before) if (before / name).is_dir())


def _supported(models: Path) -> set[str]:
    texts = ((file.parent.name, file.read_text(encoding="utf-8")) for file in models.glob("*/modeling_*.py"))
    return {name for name, text in texts if f"{_FLAG} = True" in text or f"{_FLAG}: bool = True" in text}


def table(result: Replay) -> list[str]:
    """Count the grades."""
    columns = {
        "comparable inline branches": [site for site in result.sites if site.comparable],
        "all inline branches": [site for site in result.sites if site.inline],
        "plain calls": [site for site in result.sites if not site.inline],
        "classes": result.classes,
    }
    counts = [Counter(item.grade for item in items) for items in columns.values()]
    rows = [[grade, *(str(count[grade] or "") for count in counts)] for grade in Grade]
    return text_table(["grade", *columns], [*rows, ["all", *(str(len(items)) for items in columns.values())]])


def report(result: Replay) -> Iterator[str]:
    """Yield what apply said, and every site and class that is not identical, the worst first."""
    yield f"Inline branches left in ours: {result.left}."
    yield from (f"problem: {problem}" for problem in result.problems)
    yield from (f"note: {note}" for note in result.notes)
    for grade in ORDER:
        items = [item for item in (*result.classes, *result.sites) if item.grade is grade]
        if items:
            yield f"\n{grade.upper()} ({len(items)})"
        for item in items:
            yield f"{item.path}:{item.line} {item.class_name}: {'; '.join(item.reasons)}"
            shown = [("before", item.before), ("ours", item.ours), ("upstream", item.upstream)]
            for name, text in shown if item.ours != item.before else shown[1:]:
                yield f"    {name:<9} {text or '(gone)'}"


if __name__ == "__main__":
    sys.exit(main())
