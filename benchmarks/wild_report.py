"""The table of `check` and `apply` on other packages' code: its figures, and its page. `wild` measures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.text import code, listed, markdown_table, plural, prose

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "coverage" / "wild.json"
"""Where the figures of the page are kept."""
PAGE = FIGURES.with_suffix(".md")
NOTICE = "<!-- Written by `python -m benchmarks.wild`, and by `python -m docs.generate` from wild.json. -->"


@dataclass(frozen=True, slots=True)
class Repair:
    """What `apply` did to a copy of a package.

    Attributes:
        changed: how many files it changed.
        unparsed: changed files that do not compile.
        unsettled: files that a second run would change.
        imported: how many changed modules can be imported before and after.
        broken: changed modules that could be imported before and cannot after, each with the reason.
        crash: the exception with which it ended; empty where it did not.
    """

    changed: int = 0
    unparsed: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    imported: int = 0
    broken: Mapping[str, str] = field(default_factory=dict)
    crash: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from."""
        return cls(**{**data, "unparsed": tuple(data["unparsed"]), "unsettled": tuple(data["unsettled"])})

    @property
    def failed(self) -> bool:
        """Whether the repaired package is worse than the one that was there, or `apply` is not idempotent."""
        return bool(self.crash or self.unparsed or self.unsettled or self.broken)


@dataclass(frozen=True, slots=True)
class Package:
    """One package under `check` and `apply`.

    Attributes:
        version: the release.
        requires: the versions of transformers that it asks for; empty where it asks for none.
        files: how many files `check` read.
        seconds: wall time of `check`, without a cache.
        findings: of `check`, by rule and applicability.
        safe: what `apply` did.
        unsafe: what `apply --unsafe` did.
        skipped: why changed modules cannot be imported as they are, each reason with the number of modules.
    """

    version: str
    requires: str = ""
    files: int = 0
    seconds: float = 0.0
    findings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    safe: Repair = Repair()
    unsafe: Repair = Repair()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from."""
        return cls(**{**data, "safe": Repair.of(data["safe"]), "unsafe": Repair.of(data["unsafe"])})

    @property
    def repairs(self) -> dict[str, Repair]:
        """Both repairs, by the command that makes them."""
        return {"apply": self.safe, "apply --unsafe": self.unsafe}

    @property
    def failed(self) -> bool:
        """Whether a repair failed."""
        return any(repair.failed for repair in self.repairs.values())


@dataclass(frozen=True, slots=True)
class Wild:
    """All packages and repositories by name, and the versions under which the packages' modules were imported.

    The version of a repository is its commit.
    """

    versions: Mapping[str, str]
    packages: Mapping[str, Package]
    repositories: Mapping[str, Package] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Package]:
        """Packages, then repositories."""
        return {**self.packages, **self.repositories}


def read_wild(path: Path | None = None) -> Wild:
    """The figures. Raises OSError, or KeyError or TypeError where they are not such."""
    data = json.loads((path or FIGURES).read_text(encoding="utf-8"))
    packages, repositories = (
        {name: Package.of(package) for name, package in data.get(kind, {}).items()}
        for kind in ("packages", "repositories")
    )
    return Wild(data["versions"], packages, repositories)


def write_wild(wild: Wild, path: Path | None = None) -> None:
    """Keep the figures, the packages in order of name."""
    data = {
        "versions": dict(wild.versions),
        "packages": {name: asdict(wild.packages[name]) for name in sorted(wild.packages)},
        "repositories": {name: asdict(wild.repositories[name]) for name in sorted(wild.repositories)},
    }
    (path or FIGURES).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def page(wild: Wild) -> str:
    """The page in docs/coverage."""
    kinds = [f"{kind}" for kind in Applicability]
    parts = [
        NOTICE,
        "# Other packages' code",
        f"What `check` and `apply` make of {plural(len(wild.packages), 'package')} from PyPI: models and training "
        "code that are not transformers' own. `python -m benchmarks.wild` fetches pinned wheels and measures them.",
        "## Findings",
        "`apply` repairs the safe findings. The unsafe ones are for `apply --unsafe` or a person, and the others are "
        "no faults. The third column says which release of transformers the package asks for.",
        markdown_table(
            ["package", "version", "transformers", "files", *kinds, "seconds"],
            [_package_row(name, package) for name, package in wild.packages.items()],
        ),
        _repositories(wild, kinds),
        "### By rule",
        markdown_table(["package", "rule", *kinds], list(_rule_rows(wild))),
        "## Repairs",
        "Files changed on a copy, those of them that do not compile, those that a second run would change, and the "
        "changed modules that could be imported before: how many can be after, and how many cannot "
        f"({_versions(wild)}).",
        markdown_table(
            ["package", "command", "changed", "not compiling", "changed again", "imported", "import broken"],
            list(_repair_rows(wild)),
        ),
        _list("## What broke", ["package", "command", "what", "reason"], list(_broken_rows(wild))),
        _list("## Not imported before", ["package", "modules", "reason"], list(_skipped_rows(wild))),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _versions(wild: Wild) -> str:
    return listed([f"{name} {version}" for name, version in wild.versions.items()])


def _repositories(wild: Wild, kinds: list[str]) -> str:
    """The repositories, without the column of requirements."""
    if not wild.repositories:
        return ""
    rows = [_package_row(name, package) for name, package in wild.repositories.items()]
    header = ["repository", "commit", "files", *kinds, "seconds"]
    said = "Public repositories: `python -m benchmarks.wild --repositories FOLDER` measures the checkouts in a folder."
    return f"{said}\n\n{markdown_table(header, [[*row[:2], *row[3:]] for row in rows])}"


def _package_row(name: str, package: Package) -> list[str]:
    counts = Counter[str]()
    for kinds in package.findings.values():
        counts.update(kinds)
    figures = [f"{counts[kind]:,}" for kind in Applicability]
    return [name, package.version, package.requires, f"{package.files:,}", *figures, f"{package.seconds:.1f}"]


def _rule_rows(wild: Wild) -> Iterator[list[str]]:
    for name, package in wild.all.items():
        for rule, kinds in sorted(package.findings.items()):
            yield [name, rule, *(f"{kinds.get(kind, 0):,}" for kind in Applicability)]


def _repair_rows(wild: Wild) -> Iterator[list[str]]:
    for name, package in wild.all.items():
        for command, repair in package.repairs.items():
            if repair.changed or repair.crash:
                counts = map(str, (repair.changed, len(repair.unparsed), len(repair.unsettled)))
                imports = map(str, (repair.imported, len(repair.broken)))
                yield [name, code(command), *counts, *(("not tried",) * 2 if name in wild.repositories else imports)]


def _broken_rows(wild: Wild) -> Iterator[list[str]]:
    """What went wrong; one reason once, with the first module that it holds for and the number of the others."""
    for name, package in wild.all.items():
        for command, repair in package.repairs.items():
            if repair.crash:
                yield [name, code(command), "crashed", prose(repair.crash)]
            for what, paths in (("does not compile", repair.unparsed), ("changes again", repair.unsettled)):
                yield from ([name, code(command), what, code(path)] for path in paths)
            modules: dict[str, list[str]] = {}
            for module, reason in repair.broken.items():
                modules.setdefault(reason, []).append(module)
            for reason, those in modules.items():
                more = f" and {len(those) - 1} more" if len(those) > 1 else ""
                yield [name, code(command), f"{code(those[0])}{more}", prose(reason)]


def _skipped_rows(wild: Wild) -> Iterator[list[str]]:
    for name, package in wild.all.items():
        yield from ([name, str(count), prose(reason)] for reason, count in package.skipped.items())


def _list(title: str, header: list[str], rows: list[list[str]]) -> str:
    return f"{title}\n\n{markdown_table(header, rows)}" if rows else ""
