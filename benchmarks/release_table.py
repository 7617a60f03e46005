"""Do the most used classes work in the installed release of transformers, and is its source repaired?

Runs `ckpt_surgery verify --fix` on them, and `check` and `apply` on a copy of the models. Writes the column of the
release in docs/coverage/releases.json, and docs/coverage/releases.md anew. About 10 minutes on two cores; `make
releases` does so for every release.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import stopwatch
from benchmarks.release_table_report import (
    CLASSES,
    FIGURES,
    PAGE,
    RELEASES,
    Column,
    Outcome,
    label_order,
    outcome_of,
    page,
    read_columns,
    reason_of,
    write_columns,
)
from benchmarks.stopwatch import CommandFailed
from ckpt_surgery import apply, check
from ckpt_surgery.measure.report import report_of
from ckpt_surgery.measure.results import QUICK_LEVELS
from ckpt_surgery.static.discover import installed_models
from ckpt_surgery.static.results import CheckResult


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one release. Return 0; 1 where something stays wrong; 2 where it could not run."""
    options = _options(arguments)
    release = version("transformers")
    if release not in RELEASES:
        print(f"release_table: transformers {release} is none of {', '.join(RELEASES)}.", file=sys.stderr)
        return 2
    try:
        column = measure(options.jobs)
    except CommandFailed as error:
        print(f"release_table: {error}.", file=sys.stderr)
        return 2
    columns = read_columns() if FIGURES.exists() else {}
    write_columns({**columns, release: column})
    PAGE.write_text(page(read_columns()), encoding="utf-8")
    counts = Counter(column.outcomes.values())
    counted = (f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])
    print(f"transformers {release}: {', '.join(counted)}")
    return int(column.failed)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="release_table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    return parser.parse_args(arguments)


def measure(jobs: int) -> Column:
    """The column of the installed release. Raises CommandFailed where `verify` ends without a report."""
    models = installed_models()
    defined = defined_in(models)
    document = verify([name for name in CLASSES if name in defined], jobs)
    reports = {report.label: report for report in map(report_of, document["reports"])}
    outcomes = {label: outcome_of(reports[label]) for label in label_order(list(reports))}
    reasons = {label: reason for label in outcomes if (reason := reason_of(reports[label]))}
    return Column(document["versions"], outcomes, reasons, **repair_source(models, jobs))


def defined_in(models: Path) -> set[str]:
    """The classes of all modeling files, read without importing them."""
    texts = (path.read_text(encoding="utf-8") for path in models.rglob("modeling_*.py"))
    return {name for text in texts for name in re.findall(r"^class (\w+)\(", text, re.MULTILINE)}


def verify(names: Sequence[str], jobs: int) -> Mapping[str, Any]:
    """The document of `ckpt_surgery verify --fix`. Raises CommandFailed where it ends without one."""
    with tempfile.TemporaryDirectory(prefix="release-table-") as folder:
        words = [*names, "--levels", ",".join(QUICK_LEVELS), "--jobs", str(jobs)]
        document: dict[str, Any] = json.loads(written_by_verify(words, "json", Path(folder) / "report.json"))
        return document


def written_by_verify(words: Sequence[str], form: str, file: Path) -> str:
    """What `ckpt_surgery verify --fix` writes to `file` in this form. Raises CommandFailed where that is nothing."""
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ckpt_surgery", "verify", *words, "--fix", "--exit-zero"]
    # It ends with 2 where a class is not built, and its report says so.
    ended = stopwatch.measure([*command, "--output-format", form, "--output", file], folder=ROOT, accept=(0, 2))
    if not file.is_file():
        raise CommandFailed(f"verify wrote no report: {ended.errors.strip().rpartition(chr(10))[2]}")
    return file.read_text(encoding="utf-8")


def repair_source(models: Path, jobs: int) -> Mapping[str, Any]:
    """What `check` finds in a folder of models, and in a copy of it after `apply`."""
    before = check([models], jobs=jobs)
    with copied(models) as folder:
        apply([folder], jobs=jobs)
        after = check([folder], jobs=jobs)
    return {"files": before.files, "before": tally(before), "after": tally(after)}


@contextmanager
def copied(models: Path) -> Iterator[Path]:
    """A copy of the folder of models, with the package around it, that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="release-table-") as scratch:
        copy = Path(scratch) / models.parent.name
        shutil.copytree(models.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy / models.name


def tally(result: CheckResult) -> dict[str, int]:
    """The findings of a check by applicability."""
    counts = Counter(str(finding.applicability) for finding in result.findings)
    return dict(sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
