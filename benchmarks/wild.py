"""What do `check` and `apply` do to public code that is not transformers' own?

Fetches pinned wheels from PyPI (see `releases`), runs `check` on each, and `apply` on copies, safe and unsafe. Every
changed file must compile, a second run must change nothing, and a module that could be imported must still be so.
Writes docs/coverage/wild.json and docs/coverage/wild.md. A few minutes on two cores, once the wheels are there.
With `--repositories FOLDER` the git checkouts in a folder are measured instead, each named `owner+name`; nothing of
theirs is imported.

The rules never run what they read. To see whether a changed module still imports, this script imports it, in a process
of its own: run it where that is acceptable, or with `--no-imports`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.releases import WHEEL_SHA256, ReleaseError, fetch_wheel
from benchmarks.screen import progress_bar
from benchmarks.wild_report import FIGURES, PAGE, Package, Repair, Wild, page, read_wild, write_wild
from ckpt_surgery import apply, check
from ckpt_surgery.static.results import ApplyResult, CheckResult, Progress

PART_OF = {"fla_core": "flash_linear_attention"}
"""Distributions that install into the folders of another."""
IMPORTED_ALONG = frozenset({"certifi", "charset_normalizer", "requests", "urllib3"})
"""Distributions that are not measured: diffusers needs them to be imported, and transformers does not bring them."""
IMPORT_SECONDS = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the packages. Return 0; 1 where a repair failed; 2 where a package could not be had."""
    options = _options(arguments)
    if options.repositories:
        return _measure_repositories(options.repositories, options.jobs)
    wheels = wheels_by_package()
    unknown = [name for name in options.packages if name not in wheels]
    if unknown:
        print(f"wild: {unknown[0]} is none of {', '.join(wheels)}.", file=sys.stderr)
        return 2
    names = options.packages or list(wheels)
    packages = dict(read_wild().packages) if options.packages and FIGURES.exists() else {}
    try:
        with progress_bar() as progress:
            for done, name in enumerate(names):
                if progress:
                    progress("packages", done, len(names))
                folders = [fetch_wheel(wheel) for wheel in wheels[name]]
                release = wheels[name][0].split("-")[1]
                packages[name] = measure(folders, release, options.jobs, progress, imports=options.imports)
                if not progress:
                    print(f"{name}: {_summary(packages[name])}", flush=True)
    except ReleaseError as error:
        print(f"wild: {error}.", file=sys.stderr)
        return 2
    write_wild(Wild(_versions(), packages, read_wild().repositories if FIGURES.exists() else {}))
    PAGE.write_text(page(read_wild()), encoding="utf-8")
    failed = [name for name in names if packages[name].failed]
    print(f"{len(names)} packages; a repair failed in {', '.join(failed) or 'none'}.")
    return int(bool(failed))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="wild", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="measure these anew (default: all)")
    parser.add_argument("--repositories", type=Path, metavar="FOLDER", help="measure the git checkouts in a folder")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    parser.add_argument("--no-imports", dest="imports", action="store_false", help="import no changed module")
    return parser.parse_args(arguments)


def _measure_repositories(folder: Path, jobs: int) -> int:
    """Measure the git checkouts in a folder, and write the page with them in place of those before."""
    measured: dict[str, Package] = {}
    try:
        for checkout in sorted(path for path in folder.iterdir() if (path / ".git").exists()):
            name = checkout.name.replace("+", "/")
            measured[name] = measure([checkout], _commit(checkout), jobs, imports=False)
            print(f"{name}: {_summary(measured[name])}", flush=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"wild: {folder} cannot be measured: {error}.", file=sys.stderr)
        return 2
    if not measured:
        print(f"wild: there is no git checkout in {folder}.", file=sys.stderr)
        return 2
    wild = replace(read_wild(), repositories=measured)
    write_wild(wild)
    PAGE.write_text(page(wild), encoding="utf-8")
    return int(any(repository.failed for repository in measured.values()))


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def wheels_by_package() -> dict[str, list[str]]:
    """The pinned wheels of each package that is measured, its own first."""
    wheels: dict[str, list[str]] = {}
    for wheel in sorted(WHEEL_SHA256, key=lambda wheel: _distribution(wheel) in PART_OF):
        name = _distribution(wheel)
        if name not in IMPORTED_ALONG:
            wheels.setdefault(PART_OF.get(name, name), []).append(wheel)
    return dict(sorted(wheels.items()))


def _distribution(wheel: str) -> str:
    return wheel.partition("-")[0]


def imported_along() -> list[Path]:
    """Folders with distributions that changed modules may need. Raises ReleaseError where one cannot be had."""
    return [fetch_wheel(wheel) for wheel in WHEEL_SHA256 if _distribution(wheel) in IMPORTED_ALONG]


def measure(
    folders: Sequence[Path], release: str, jobs: int, progress: Progress | None = None, *, imports: bool = True
) -> Package:
    """What `check` finds in a package that lies in these folders, and what `apply` does to copies of it."""
    with tempfile.TemporaryDirectory(prefix="wild-") as scratch:
        before, safe, unsafe = (Path(scratch).resolve() / name for name in ("before", "safe", "unsafe"))
        for copy in (before, safe, unsafe):
            for folder in folders:
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(folder, copy, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        checked = check([before], jobs=jobs, cache=False, progress=progress)
        changed = {copy: _repair(copy, jobs, progress, unsafe=copy is unsafe) for copy in (safe, unsafe)}
        modules = {copy: [_module(path) for path in paths] for copy, (paths, _) in changed.items()} if imports else {}
        reasons = _import_failures(before, {name for names in modules.values() for name in names})
        importable = {name for name, reason in reasons.items() if not reason}
        repairs = [
            _imported(repair, copy, importable.intersection(modules.get(copy, ())))
            for copy, (_, repair) in changed.items()
        ]
        return Package(
            version=release,
            requires=_required_transformers(before),
            files=checked.files,
            seconds=round(checked.seconds, 1),
            findings=_tally(checked),
            safe=repairs[0],
            unsafe=repairs[1],
            skipped=dict(sorted(Counter(filter(None, reasons.values())).items())),
        )


def _repair(copy: Path, jobs: int, progress: Progress | None, *, unsafe: bool) -> tuple[list[str], Repair]:
    """Repair a copy in place, twice; return the paths of the changed files in it, and what can be said of them."""
    try:
        first = apply([copy], unsafe=unsafe, jobs=jobs, progress=progress)
        second = apply([copy], unsafe=unsafe, jobs=jobs, progress=progress, write=False)
    except Exception as error:  # whatever a repair dies of is a result here
        return [], Repair(crash=f"{type(error).__name__}: {error}")
    changed = _changed(first, copy)
    unparsed = tuple(path for path in changed if not _compiles(copy / path))
    return changed, Repair(len(changed), unparsed, tuple(_changed(second, copy)))


def _changed(result: ApplyResult, copy: Path) -> list[str]:
    return sorted(Path(change.path).relative_to(copy).as_posix() for change in result.changes)


def _compiles(path: Path) -> bool:
    try:
        compile(path.read_bytes(), str(path), "exec", flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError):
        return False
    return True


def _imported(repair: Repair, copy: Path, modules: Collection[str]) -> Repair:
    """The same repair, with what became of the modules that could be imported before."""
    broken = {name: reason for name, reason in _import_failures(copy, modules).items() if reason}
    return replace(repair, imported=len(modules) - len(broken), broken=broken)


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _import_failures(folder: Path, modules: Iterable[str]) -> dict[str, str]:
    """For each module why it cannot be imported from a folder; empty where it can."""
    names = sorted(modules)
    if not names:
        return {}
    command = [sys.executable, "-B", str(ROOT / "benchmarks" / "import_modules.py"), str(folder)]
    paths = os.pathsep.join([*map(str, imported_along()), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    try:
        run = subprocess.run(
            command,
            input="\n".join(names),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=folder,
            env=environment,
            timeout=IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(names, f"not done within {IMPORT_SECONDS} s")
    try:
        failures: dict[str, str] = json.loads(run.stdout)
    except ValueError:
        return dict.fromkeys(names, f"the process ended with {run.returncode}")
    return {name: reason.replace(str(folder), "") for name, reason in failures.items()}


def _required_transformers(folder: Path) -> str:
    """The versions of transformers that a package asks for, or that its extras do."""
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


def _tally(result: CheckResult) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for finding in result.findings:
        counts.setdefault(finding.code, Counter())[str(finding.applicability)] += 1
    return {code: dict(sorted(kinds.items())) for code, kinds in sorted(counts.items())}


def _versions() -> Mapping[str, str]:
    """Under which versions modules were imported."""
    versions = {"Python": ".".join(map(str, sys.version_info[:2]))}
    for name in ("torch", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _summary(package: Package) -> str:
    findings = sum(sum(kinds.values()) for kinds in package.findings.values())
    changed = " and ".join(f"{repair.changed} by {command}" for command, repair in package.repairs.items())
    return f"{findings} findings in {package.files} files, changed {changed}{'; FAILED' if package.failed else ''}"


if __name__ == "__main__":
    sys.exit(main())
