"""Try the whole product on the installed release of transformers, and write its page in docs/coverage.

Runs `check`, `apply` twice on a copy of its models, `verify --all --fix`, the planted faults and the tests that need
torch. The page says what differs from the release before: new classes, verdicts, names that vanished. About an hour on
two cores; what `verify` has finished is kept in out/release, and a second run goes on from there. `make release
VERSION=5.24.0` installs the release beside the project and runs this.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import stopwatch
from benchmarks.release_report import PAGES, RanTests, Release, Source, before, levels_of, section, verdicts_of, write
from benchmarks.release_table import copied, tally, written_by_verify
from benchmarks.stopwatch import CommandFailed
from ckpt_surgery import apply, check
from ckpt_surgery.measure.report import report_of
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.static.discover import installed_models

OUT = ROOT / "out" / "release"
TESTS: Mapping[str, Sequence[str]] = {
    "Planted faults": ("tests/measure/test_planted.py",),
    "Tests that need torch": ("tests", "-m", "torch and not transformers4 and not gpu and not slow"),
}
"""What of the project's tests is run on a release, as arguments of pytest."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)
_PASSED = re.compile(r"(\d+) passed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the installed release. Return 0; 1 where something is wrong; 2 where it could not run."""
    options = _options(arguments)
    try:
        release, page = measure(options.jobs, tests=not options.no_tests)
    except CommandFailed as error:
        print(f"release: {error}.", file=sys.stderr)
        return 2
    last = before(release.version)
    write(release)
    file = PAGES / f"{release.version}.md"
    added = section(release, last)
    file.write_text(f"{page.rstrip()}\n\n{added}", encoding="utf-8")
    print(added)
    print(f"Written to {file.relative_to(ROOT)}")
    return int(release.wrong)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    parser.add_argument("--no-tests", action="store_true", help="leave the project's own tests out")
    return parser.parse_args(arguments)


def measure(jobs: int, *, tests: bool) -> tuple[Release, str]:
    """The figures of the installed release, and the page of verdicts. Raises CommandFailed where there are none."""
    versions = installed_versions()
    models = installed_models()
    source = repair_twice(models, jobs)
    document, page = verify_all(versions["transformers"], jobs)
    reports = [report_of(report) for report in document["reports"]]
    found = Release(
        document["versions"],
        verdicts_of(reports),
        levels_of(reports),
        len(trained_classes()),
        names_of_models(),
        source,
        {what: run_tests(words) for what, words in TESTS.items()} if tests else {},
    )
    return found, page


def repair_twice(models: Path, jobs: int) -> Source:
    """What `check` finds in a folder of models, and in a copy of it after `apply`, which a second one leaves alone."""
    found = check([models], jobs=jobs)
    with copied(models) as folder:
        apply([folder], jobs=jobs)
        once = _texts(folder)
        apply([folder], jobs=jobs)
        again = _texts(folder)
        left = check([folder], jobs=jobs)
    changed = sum(text != again[file] for file, text in once.items())
    return Source(found.files, tally(found), tally(left), changed)


def _texts(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*.py")}


def verify_all(version: str, jobs: int) -> tuple[dict[str, Any], str]:
    """The document of `verify --all --fix`, and the page of it. Raises CommandFailed where it ends without one."""
    OUT.mkdir(parents=True, exist_ok=True)
    words = ["--all", "--jobs", str(jobs), "--resume", str(OUT / f"{version}.jsonl")]
    document, page = (written_by_verify(words, form, OUT / f"{version}.{form}") for form in ("json", "markdown"))
    return json.loads(document), page


def trained_classes() -> list[type]:
    """The model classes that the release exports, apart from those that nobody can train by calling them."""
    import transformers
    from transformers import PreTrainedModel

    from ckpt_surgery.model_patches import family_tables

    found = []
    for name in dir(transformers):
        if name in family_tables().left_out or name.endswith("PreTrainedModel") or not name[:1].isupper():
            continue
        try:
            kind = getattr(transformers, name)
        except Exception:  # needs a package that is not installed
            continue
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel) and "forward" in dir(kind):
            found.append(kind)
    return found


def names_of_models() -> dict[str, int]:
    """How many classes have each argument of a forward, and each method with which checkpointing is switched."""
    counts: Counter[str] = Counter()
    for kind in trained_classes():
        counts.update(list(inspect.signature(kind.forward).parameters))  # type: ignore[attr-defined]
        counts.update(name for name in dir(kind) if "checkpointing" in name)
    return dict(sorted(counts.items()))


def run_tests(words: Sequence[str]) -> RanTests:
    """Run tests of this project on two workers. Raises CommandFailed where pytest does not end by itself."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-rfE", "--no-header", *words]
    ended = stopwatch.measure(command, folder=ROOT, accept=(0, 1), keep=200_000)
    passed = _PASSED.search(ended.output)
    return RanTests(int(passed[1]) if passed else 0, tuple(_FAILED.findall(ended.output)))


if __name__ == "__main__":
    sys.exit(main())
