"""What a release of transformers is like next to the one before: its verdicts, its names, and the words for both.

Needs neither torch nor transformers: `release` measures, and this writes down.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from packaging.version import Version

from ckpt_surgery.measure.report import Report
from ckpt_surgery.text import code, listed, markdown_table, plural

PAGES = Path(__file__).resolve().parent.parent / "docs" / "coverage"


@dataclass(frozen=True, slots=True)
class Source:
    """What `check` finds in the models of a release by applicability, and after `apply` and a second `apply`."""

    files: int
    found: Mapping[str, int]
    left: Mapping[str, int]
    changed_again: int


@dataclass(frozen=True, slots=True)
class RanTests:
    """How many tests passed and failed, and the names of those that failed."""

    passed: int
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """One release, as this project sees it.

    Attributes:
        versions: of ckpt-surgery, torch and transformers.
        verdicts: by class, with its variant: the status as released, and that after `wrap_blocks`.
        levels: by the classes that fail as released: the levels that do.
        classes: how many model classes the release has; `verdicts` may have fewer.
        names: by argument of a model's forward, and by method that switches checkpointing, how many classes have it.
        source: what the static half makes of its models.
        tests: by what was run.
    """

    versions: Mapping[str, str]
    verdicts: Mapping[str, tuple[str, str]]
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: int = 0
    names: Mapping[str, int] = field(default_factory=dict)
    source: Source | None = None
    tests: Mapping[str, RanTests] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from. Raises KeyError or TypeError where it did not."""
        source = data["source"]
        return cls(
            data["versions"],
            {label: (before, after) for label, (before, after) in data["verdicts"].items()},
            {label: tuple(levels) for label, levels in data["levels"].items()},
            data["classes"],
            data["names"],
            None if source is None else Source(**source),
            {what: RanTests(ran["passed"], tuple(ran["failed"])) for what, ran in data["tests"].items()},
        )

    @property
    def version(self) -> Version:
        """The release of transformers."""
        return Version(self.versions["transformers"])

    @property
    def wrong(self) -> bool:
        """Whether something is left that this project should have repaired."""
        left = self.source is not None and (self.source.left.get("safe", 0) > 0 or self.source.changed_again > 0)
        failed = any(ran.failed for ran in self.tests.values())
        return left or failed or any(after == "failed" for _, after in self.verdicts.values())


def verdicts_of(reports: Iterable[Report]) -> dict[str, tuple[str, str]]:
    """The status of each class as released, and after `wrap_blocks`."""
    return {r.label: (r.status, r.repair.status if r.repair else "not repaired") for r in reports}


def levels_of(reports: Iterable[Report]) -> dict[str, tuple[str, ...]]:
    """The levels that fail of each class that does."""
    return {r.label: tuple(sorted({fault.level for _, fault in r.faults})) for r in reports if r.status == "failed"}


def write(release: Release, folder: Path = PAGES) -> Path:
    """Keep the figures of a release beside its page, a line for each class. Returns the file."""
    file = folder / f"{release.version}.json"
    data = asdict(release)
    rows = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in data.items() if name != "verdicts")
    classes = ",\n".join(f"    {json.dumps(label)}: {json.dumps(each)}" for label, each in data["verdicts"].items())
    file.write_text("{\n" + ",\n".join(rows) + ',\n  "verdicts": {\n' + classes + "\n  }\n}\n", encoding="utf-8")
    return file


def read(file: Path) -> Release:
    """Read the figures of a release. Raises OSError, KeyError, TypeError or ValueError where there are none."""
    return Release.of(json.loads(file.read_text(encoding="utf-8")))


def before(version: Version, folder: Path = PAGES) -> Release | None:
    """The release before this one whose figures are kept; None where there is none."""
    files = [file for file in folder.glob("*.json") if file.stem[:1].isdigit() and Version(file.stem) < version]
    return read(max(files, key=lambda file: Version(file.stem))) if files else None


def section(release: Release, last: Release | None) -> str:
    """What the page of a release says besides its verdicts: what was run, and what differs from the last release."""
    return (
        "\n\n".join(["## The release", *_ran(release), *(_next_to(release, last) if last is not None else ())]) + "\n"
    )


def _ran(release: Release) -> Iterator[str]:
    labels = {label.partition(" (")[0] for label in release.verdicts}
    if len(labels) < release.classes:
        yield f"This page has {len(labels):,} of the {release.classes:,} classes of the release."
    if (source := release.source) is not None:
        found, left = (sum(counts.values()) for counts in (source.found, source.left))
        again = "nothing" if not source.changed_again else plural(source.changed_again, "file")
        yield (
            f"`check` finds {found:,} faults in {source.files:,} files, and {left:,} after `apply`; a second `apply` "
            f"changes {again}."
        )
    for what, ran in release.tests.items():
        failed = "" if not ran.failed else f": {listed([code(name) for name in ran.failed])}"
        yield f"{what}: {ran.passed:,} passed, {len(ran.failed):,} failed{failed}."


def _next_to(release: Release, last: Release) -> Iterator[str]:
    yield f"### Next to {last.version}"
    new = [label for label in release.verdicts if label not in last.verdicts]
    unbuilt = [label for label in new if release.verdicts[label][0] == "not built"]
    yield f"{plural(len(new), 'new class', 'new classes')}{_named(new)}. Not built: {len(unbuilt):,}{_named(unbuilt)}."
    gone = [label for label in last.verdicts if label not in release.verdicts]
    yield f"{plural(len(gone), 'class', 'classes')} gone{_named(gone)}."
    names = sorted(name for name, count in last.names.items() if count and not release.names.get(name))
    yield f"{plural(len(names), 'name')} vanished{_named(names)}."
    rows = [
        (code(label), *_words(last, label), *_words(release, label))
        for label in release.verdicts
        if label in last.verdicts and _words(last, label) != _words(release, label)
    ]
    if not rows:
        yield "No verdict changed."
        return
    releases = (str(last.version), str(release.version))
    titles = ["class", *(title for of in releases for title in (f"{of} as released", f"{of} after wrap_blocks"))]
    yield markdown_table(titles, rows)


def _words(release: Release, label: str) -> tuple[str, str]:
    status, after = release.verdicts[label]
    levels = release.levels.get(label, ())
    return f"{status}: {', '.join(levels)}" if levels else status, after


def _named(names: Sequence[str]) -> str:
    return f": {listed([code(name) for name in names])}" if names else ""
