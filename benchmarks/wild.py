"""What do `check` and `apply` do to public code that is not transformers' own?

    python -m benchmarks.wild wild.jsonl --page
    python -m benchmarks.wild repositories.jsonl --page --repositories FOLDER

Fetches pinned wheels from PyPI (see `releases`), runs `check` on each, and `apply` on copies, safe and unsafe. Every
changed file must compile, a second run must change nothing, and a module that could be imported must still be so. With
`--repositories` the git checkouts in a folder are measured, each named `owner+name`. Exits with 1 where a repair
failed.

The rules never run what they read. To see whether a changed module still imports, it is imported in a process of its
own: run this where that is acceptable; nothing of a repository is imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.survey import Page, Row, Survey, installed, written_by
from ckpt_surgery import apply, check
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.text import code, listed, markdown_table, plural, prose, titled
from tests.releases import WHEEL_SHA256, fetch_wheel

PART_OF = {"fla_core": "flash_linear_attention"}
"""Distributions that install into the folders of another."""
IMPORTED_ALONG = frozenset({"certifi", "charset_normalizer", "requests", "urllib3"})
"""Distributions that are not measured: diffusers needs them to be imported, and transformers does not bring them."""
IMPORT_SECONDS = 300
IMPORT = """\
import contextlib, importlib, json, sys
def failure(name):
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:
        said = str(error).strip().splitlines()
        return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return ""
sys.path[0] = sys.argv[1]
with contextlib.redirect_stdout(sys.stderr):
    reasons = {name: failure(name) for name in sys.stdin.read().split()}
print(json.dumps(reasons))
"""
"""Imports the modules named on standard input from a folder, and prints for each why it cannot be, as JSON."""
COMMANDS = {"safe": "apply", "unsafe": "apply --unsafe"}
"""The two repairs, and the commands that make them."""


def wheels_by_package() -> dict[str, list[str]]:
    """Return the pinned wheels of each package that is measured, its own first."""
    wheels: dict[str, list[str]] = {}
    for wheel in sorted(WHEEL_SHA256, key=lambda wheel: wheel.partition("-")[0] in PART_OF):
        name = wheel.partition("-")[0]
        if name not in IMPORTED_ALONG:
            wheels.setdefault(PART_OF.get(name, name), []).append(wheel)
    return dict(sorted(wheels.items()))


def measure_package(name: str) -> Row:
    """Fetch a package and measure it. Raises ReleaseError where it cannot be had."""
    wheels = wheels_by_package()[name]
    return measure([fetch_wheel(wheel) for wheel in wheels], wheels[0].split("-")[1])


def measure_repository(folder: Path, name: str) -> Row:
    """Measure a git checkout."""
    checkout = folder / name.replace("/", "+")
    command = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return measure([checkout], commit, imports=False)


def measure(folders: Sequence[Path], release: str, *, imports: bool = True) -> Row:
    """Run `check` on the package that lies in these folders, and `apply` on copies of it."""
    with tempfile.TemporaryDirectory(prefix="wild-") as scratch:
        before, *copies = (Path(scratch).resolve() / name for name in ("before", *COMMANDS))
        for copy in (before, *copies):
            for folder in folders:
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(folder, copy, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        checked = check([before], cache=False)
        findings: dict[str, Counter[str]] = {}
        for finding in checked.findings:
            findings.setdefault(finding.code, Counter())[str(finding.applicability)] += 1
        repairs = {copy: repair(copy, unsafe=copy.name == "unsafe") for copy in copies}
        modules = {
            copy: [p.removesuffix(".py").replace("/", ".") for p in paths] for copy, (paths, _) in repairs.items()
        }
        every = {name for names in modules.values() for name in names} if imports else set()
        reasons = import_failures(before, every)
        for copy, (_, made) in repairs.items():
            names = [name for name in modules[copy] if reasons.get(name) == ""]
            made["broken"] = {name: why for name, why in import_failures(copy, names).items() if why}
            made["imported"] = len(names) - len(made["broken"])
        return {
            "version": release,
            "requires": required_transformers(before),
            "files": checked.files,
            "seconds": round(checked.seconds, 1),
            "findings": {rule: dict(sorted(kinds.items())) for rule, kinds in sorted(findings.items())},
            **{copy.name: made for copy, (_, made) in repairs.items()},
            "skipped": dict(sorted(Counter(filter(None, reasons.values())).items())),
        }


def repair(copy: Path, *, unsafe: bool) -> tuple[list[str], dict[str, Any]]:
    """Repair a copy in place, twice; return the paths of the changed files in it, and what can be said of them."""
    made: dict[str, Any] = {"changed": 0, "unparsed": [], "unsettled": [], "imported": 0, "broken": {}, "crash": ""}
    try:
        results = [apply([copy], unsafe=unsafe), apply([copy], unsafe=unsafe, write=False)]
    except Exception as error:  # whatever a repair dies of is a result here
        return [], {**made, "crash": f"{type(error).__name__}: {error}"}
    changed, again = (
        sorted(Path(change.path).relative_to(copy).as_posix() for change in result.changes) for result in results
    )
    unparsed = [path for path in changed if not _compiles(copy / path)]
    return changed, {**made, "changed": len(changed), "unparsed": unparsed, "unsettled": again}


def _compiles(path: Path) -> bool:
    try:
        compile(path.read_bytes(), str(path), "exec", flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError):
        return False
    return True


def imported_along() -> list[Path]:
    """Return the folders of distributions that changed modules may need. Raises ReleaseError."""
    return [fetch_wheel(wheel) for wheel in WHEEL_SHA256 if wheel.partition("-")[0] in IMPORTED_ALONG]


def import_failures(folder: Path, modules: Collection[str]) -> dict[str, str]:
    """Say for each module why it cannot be imported from a folder; empty where it can."""
    names = sorted(modules)
    if not names:
        return {}
    paths = os.pathsep.join([*map(str, imported_along()), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    command = [sys.executable, "-B", "-c", IMPORT, str(folder)]
    options: dict[str, Any] = {"cwd": folder, "env": environment, "timeout": IMPORT_SECONDS, "errors": "replace"}
    try:
        run = subprocess.run(command, input="\n".join(names), capture_output=True, text=True, check=False, **options)
        failures: dict[str, str] = json.loads(run.stdout)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(names, f"not done within {IMPORT_SECONDS} s")
    except ValueError:
        return dict.fromkeys(names, f"the process ended with {run.returncode}")
    return {name: reason.replace(str(folder), "") for name, reason in failures.items()}


def required_transformers(folder: Path) -> str:
    """Return the versions of transformers that a package asks for, or that its extras do."""
    always: dict[str, None] = {}
    extras: dict[str, None] = {}
    for path in sorted(folder.glob("*.dist-info/METADATA")):
        text = path.read_text(encoding="utf-8")
        for versions, condition in re.findall(
            r"^Requires-Dist: transformers(?![\w-])(?:\[[^]]*\])?[ (]*([^;)\n]*)\)?(.*)$", text, re.M
        ):
            extra = re.search(r"extra *== *['\"]([^'\"]+)", condition)
            place, suffix = (extras, " (an extra)") if extra else (always, "")
            place[f"{versions.strip() or 'any'}{suffix}"] = None
    return "; ".join(always or extras)


def failed(package: Row) -> bool:
    """Tell whether a repaired package is worse than the one that was there, or `apply` is not idempotent."""
    return any(package[each][key] for each in COMMANDS for key in ("crash", "unparsed", "unsettled", "broken"))


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    kinds = [*map(str, Applicability)]
    packages, repositories = figures["packages"], figures["repositories"]
    every = {**packages, **repositories}
    versions = listed([f"{name} {version}" for name, version in figures["versions"].items()])
    yield "# Other packages' code"
    yield (
        f"What `check` and `apply` make of {plural(len(packages), 'package')} from PyPI: models and training code "
        "that are not transformers' own. `python -m benchmarks.wild` fetches pinned wheels and measures them."
    )
    yield "## Findings"
    yield (
        "`apply` repairs the safe findings. The unsafe ones are for `apply --unsafe` or a person, and the others are "
        "no faults. The third column says which release of transformers the package asks for."
    )
    rows = {name: _row(package) for name, package in every.items()}
    heads = ["package", "version", "transformers", "files", *kinds, "seconds"]
    yield markdown_table(heads, [[name, *rows[name]] for name in packages])
    if repositories:
        command = "python -m benchmarks.wild --repositories FOLDER"
        yield f"Public repositories: `{command}` measures the checkouts in a folder."
        heads = ["repository", "commit", "files", *kinds, "seconds"]
        yield markdown_table(heads, [[name, rows[name][0], *rows[name][2:]] for name in repositories])
    yield "### By rule"
    by_rule = [
        [name, rule, *(f"{counts.get(kind, 0):,}" for kind in kinds)]
        for name, package in every.items()
        for rule, counts in sorted(package["findings"].items())
    ]
    yield markdown_table(["package", "rule", *kinds], by_rule)
    yield "## Repairs"
    yield (
        "Files changed on a copy, those of them that do not compile, those that a second run would change, and the "
        "changed modules that could be imported before: how many can be after, and how many cannot "
        f"({versions})."
    )
    made = [
        [name, code(COMMANDS[each]), *_counts(package[each], imports=name in packages)]
        for name, package in every.items()
        for each in COMMANDS
        if package[each]["changed"] or package[each]["crash"]
    ]
    heads = ["package", "command", "changed", "not compiling", "changed again", "imported", "import broken"]
    yield markdown_table(heads, made)
    broken = [
        [name, code(COMMANDS[each]), *cells]
        for name, package in every.items()
        for each in COMMANDS
        for cells in _broken(package[each])
    ]
    yield titled("## What broke", markdown_table(["package", "command", "what", "reason"], broken) if broken else "")
    skipped = [
        [name, str(count), prose(reason)]
        for name, package in every.items()
        for reason, count in package["skipped"].items()
    ]
    table = markdown_table(["package", "modules", "reason"], skipped)
    yield titled("## Not imported before", table if skipped else "")


def _row(package: Row) -> list[str]:
    counts = sum(map(Counter, package["findings"].values()), Counter[str]())
    figures = [f"{number:,}" for number in (package["files"], *(counts[kind] for kind in Applicability))]
    return [package["version"], package["requires"], *figures, f"{package['seconds']:.1f}"]


def _counts(made: Row, *, imports: bool) -> list[str]:
    counts = [made["changed"], len(made["unparsed"]), len(made["unsettled"])]
    return [*map(str, counts), *map(str, (made["imported"], len(made["broken"])) if imports else ("not tried",) * 2)]


def _broken(made: Row) -> Iterator[list[str]]:
    """Say what went wrong; one reason once, with the first module that it holds for and how many others."""
    if made["crash"]:
        yield ["crashed", prose(made["crash"])]
    for what, key in (("does not compile", "unparsed"), ("changes again", "unsettled")):
        yield from ([what, code(path)] for path in made[key])
    for reason in dict.fromkeys(made["broken"].values()):
        first, *others = (module for module, why in made["broken"].items() if why == reason)
        yield [f"{code(first)}{f' and {len(others)} more' if others else ''}", prose(reason)]


def conclude(kind: str, rows: Sequence[Row], known: int, page: bool) -> bool:
    """Print what became of each package or repository, and tell whether a repair failed."""
    measured = {row["case"]: {key: row[key] for key in row if key != "case"} for row in rows}
    whole = {name: row for name, row in sorted(measured.items()) if "problem" not in row}
    for name, row in measured.items():
        said = row.get("problem") or f"{sum(sum(each.values()) for each in row['findings'].values())} findings"
        print(f"{name}: {said}{'; a repair FAILED' if name in whole and failed(row) else ''}")
    if page:
        figures = PAGE.read()
        if kind == "packages":
            whole = dict(sorted({**figures[kind], **whole}.items()))
            python = ".".join(platform.python_version_tuple()[:2])
            figures["versions"] = {"Python": python, **installed("torch", "transformers")}
        PAGE.write({**figures, kind: whole})
    return len(whole) < len(measured) or any(map(failed, whole.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure packages, or repositories where a folder of them is given."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--repositories", type=Path, metavar="FOLDER", help="measure the git checkouts in a folder")
    options, _ = parser.parse_known_args(arguments)
    kind, cases, work = "packages", list(wheels_by_package()), measure_package
    if options.repositories:
        checkouts = sorted(path for path in options.repositories.iterdir() if (path / ".git").exists())
        kind, cases = "repositories", [path.name.replace("+", "/") for path in checkouts]
        work = partial(measure_repository, options.repositories)
    concluded = partial(conclude, kind)
    survey = Survey("wild", __doc__, lambda: cases, work, concluded, seconds=3600.0, shuffled=False)
    return survey.main(arguments, [parser])


PAGE = Page("wild", written_by("python -m benchmarks.wild", "wild"), sections)
if __name__ == "__main__":
    sys.exit(main())
