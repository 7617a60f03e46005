"""Try the whole product on the installed release of transformers, and write its page in docs/coverage.

Runs `check`, `apply` twice on a copy of its models, `verify --all --fix`, the planted faults and the tests that need
torch. The page says what differs from the release before: new classes, verdicts, names that vanished. About an hour on
two cores; what `verify` has finished is kept in out/release, and a second run goes on from there. `make release
VERSION=5.24.0` installs the release beside the project and runs this. Exits with 1 where something is wrong.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from benchmarks import survey
from benchmarks.release_table import JOBS, repair_twice, written_by_verify
from benchmarks.stopwatch import CommandFailed, run_tests
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.static.discover import installed_models
from ckpt_surgery.text import code, listed, markdown_table, paragraphs, plural

OUT = survey.ROOT / "out" / "release"
TESTS: Mapping[str, Sequence[str]] = {
    "Planted faults": ("tests/measure/test_planted.py",),
    "Tests that need torch": ("tests", "-m", "torch and not transformers4 and not gpu and not slow"),
}
"""What of the project's tests is run on a release, as arguments of pytest."""
WORKERS = ("-n", str(JOBS), "--dist", "loadfile")
Release = Mapping[str, Any]
"""The figures of one release.

Of its `versions`; `verdicts` by class, as released and after `wrap_blocks`; the `levels` that fail of classes as
released; how many `classes` there are; the `names` of arguments and methods, with how many classes have them; what the
static half makes of the `source` of its models; and the `tests` that ran.
"""


def main() -> int:
    """Measure the installed release. Return 1 where something is wrong, 2 where it could not run."""
    try:
        release, page = measure()
    except CommandFailed as error:
        print(f"release: {error}.", file=sys.stderr)
        return 2
    last = before(release)
    file = survey.COVERAGE / f"{release['versions']['transformers']}.md"
    file.with_suffix(".json").write_text(json.dumps(release, indent=1) + "\n", encoding="utf-8")
    file.write_text(f"{page.rstrip()}\n\n{section(release, last)}", encoding="utf-8")
    print(section(release, last))
    print(f"Written to {file}")
    return int(wrong(release))


def measure() -> tuple[Release, str]:
    """Measure the installed release, and return the page of verdicts too. Raises CommandFailed."""
    source = repair_twice(installed_models())
    version = installed_versions()["transformers"]
    OUT.mkdir(parents=True, exist_ok=True)
    words = ["--all", "--resume", str(OUT / f"{version}.jsonl")]
    text, page = (written_by_verify(words, form, OUT / f"{version}.{form}") for form in ("json", "markdown"))
    document = json.loads(text)
    reports = [Report.from_dict(report) for report in document["reports"]]
    failing = [report for report in reports if report.status == "failed"]
    release = {
        "versions": document["versions"],
        "levels": {r.label: sorted({fault.level for _, fault in r.faults}) for r in failing},
        "classes": len(trained_classes()),
        "names": names_of_models(),
        "source": source,
        "tests": {what: run_tests(*WORKERS, *words) for what, words in TESTS.items()},
        "verdicts": {r.label: (r.status, r.repair.status if r.repair else "not repaired") for r in reports},
    }
    return release, page


def trained_classes() -> list[type]:
    """Return the model classes that the release exports, but for those that nobody can train by calling them."""
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
    """Count the classes that have each argument of a forward, and each method that switches checkpointing."""
    counts: Counter[str] = Counter()
    for kind in trained_classes():
        counts.update(list(inspect.signature(kind.forward).parameters))  # type: ignore[attr-defined]
        counts.update(name for name in dir(kind) if "checkpointing" in name)
    return dict(sorted(counts.items()))


def before(release: Release) -> Release | None:
    """Return the figures of the release before this one; None where there are none."""
    version = Version(release["versions"]["transformers"])
    files = {Version(file.stem): file for file in survey.COVERAGE.glob("*.json") if file.stem[:1].isdigit()}
    earlier = [each for each in files if each < version]
    return json.loads(files[max(earlier)].read_text(encoding="utf-8")) if earlier else None


def wrong(release: Release) -> bool:
    """Tell whether something is left that this project should have repaired."""
    source = release["source"]
    left = source and (source["left"].get("safe") or source["changed_again"])
    failed = any(ran["failed"] for ran in release["tests"].values())
    return bool(left) or failed or any(after == "failed" for _, after in release["verdicts"].values())


def section(release: Release, last: Release | None) -> str:
    """Say what was run on a release, and what differs from the last one, as the end of its page."""
    return paragraphs("## The release", *_ran(release), *(_next_to(release, last) if last else ())) + "\n"


def _ran(release: Release) -> Iterator[str]:
    labels = {label.partition(" (")[0] for label in release["verdicts"]}
    if len(labels) < release["classes"]:
        yield f"This page has {len(labels):,} of the {release['classes']:,} classes of the release."
    if source := release["source"]:
        found, left = (sum(source[key].values()) for key in ("found", "left"))
        again = plural(source["changed_again"], "file") if source["changed_again"] else "nothing"
        yield (
            f"`check` finds {found:,} faults in {source['files']:,} files, and {left:,} after `apply`; a second "
            f"`apply` changes {again}."
        )
    for what, ran in release["tests"].items():
        yield f"{what}: {ran['passed']:,} passed, {len(ran['failed']):,} failed{_named(ran['failed'])}."


def _next_to(release: Release, last: Release) -> Iterator[str]:
    versions = [each["versions"]["transformers"] for each in (last, release)]
    verdicts, earlier = release["verdicts"], last["verdicts"]
    yield f"### Next to {versions[0]}"
    new = [label for label in verdicts if label not in earlier]
    unbuilt = [label for label in new if verdicts[label][0] == "not built"]
    yield f"{plural(len(new), 'new class', 'new classes')}{_named(new)}. Not built: {len(unbuilt):,}{_named(unbuilt)}."
    gone = [label for label in earlier if label not in verdicts]
    yield f"{plural(len(gone), 'class', 'classes')} gone{_named(gone)}."
    names = sorted(name for name, count in last["names"].items() if count and not release["names"].get(name))
    yield f"{plural(len(names), 'name')} vanished{_named(names)}."
    words = {label: (_words(last, label), _words(release, label)) for label in verdicts if label in earlier}
    rows = [(code(label), *was, *now) for label, (was, now) in words.items() if was != now]
    titles = ["class", *(f"{version} {when}" for version in versions for when in ("as released", "after wrap_blocks"))]
    yield markdown_table(titles, rows) if rows else "No verdict changed."


def _words(release: Release, label: str) -> tuple[str, str]:
    status, after = release["verdicts"][label]
    levels = release["levels"].get(label, ())
    return f"{status}: {', '.join(levels)}" if levels else status, after


def _named(names: Sequence[str]) -> str:
    return f": {listed([code(name) for name in names])}" if names else ""


if __name__ == "__main__":
    sys.exit(main())
