"""Who takes part in the speed benchmark: `check`, `ast.parse`, mlinter, `apply`, libcst's codemod tool, `--help`.

A contestant is given an empty folder for one round, runs its commands there and hands each out by name.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.releases import fetch
from benchmarks.stopwatch import CommandFailed, Run, measure

ROOT = Path(__file__).resolve().parent.parent
CHECKED, REPAIRED = "5.23.0", "4.52.4"
"""The release that `check` reads, and the one that `apply` rewrites."""
GROUPS = ("check", "mlinter", "apply", "help")
MLINTER = "transformers-mlinter==0.1.5"
RULE = "TRF034"
"""mlinter's only rule about checkpointing."""
JOBS = "2"
REWRITTEN = 220
"""Fewer rewritten files than these, and the time of `apply` would mean nothing."""
HELPS = 5
"""So many `--help` a round: other load weighs most on what is short."""
HEAVY = ("torch", "transformers")
"""What `--help` may not import."""

Contestant = Callable[[Path], Iterator[tuple[str, Run]]]


def contestants(only: Sequence[str], models: Path, *, kept: bool, tree: Path | None = None) -> list[Contestant]:
    """The wanted ones, with all that they need already fetched, installed and compiled.

    `models` is that folder of the release, which is checked unless there is a `tree`.
    """
    checked = tree or models
    accepted = (0, 2) if tree else (0,)  # 2 where some of other people's files do not parse
    _ours("--help")
    contestants: list[Contestant] = []
    if "check" in only:
        contestants += [lambda scratch: _parse(checked, kept), lambda scratch: _check(checked, scratch, accepted)]
    if "mlinter" in only:
        # The cache that the release was unpacked into: <cache>/releases/transformers-5.23.0/src/transformers/models.
        python = _mlinter_python(models.parents[4] / "tools" / MLINTER)
        contestants.append(lambda scratch: _mlinter(python, checked, scratch, (0, 1) if tree else (1,)))
    if "apply" in only:
        package = fetch(REPAIRED)
        contestants.append(lambda scratch: _apply(package, scratch))
    if "help" in only:
        contestants.append(_help)
    return contestants


def _ours(*words: str | Path, cache: Path | None = None, accept: tuple[int, ...] = (0,)) -> Run:
    """One command of this project, with the cache of its own that it is given."""
    environment = _environment({} if cache is None else {"CKPT_SURGERY_CACHE": str(cache)})
    return measure([sys.executable, "-m", "ckpt_surgery", *words], environment=environment, accept=accept)


def _environment(more: dict[str, str], first: Path | None = None) -> dict[str, str]:
    places = [str(place) for place in (first, ROOT) if place] + [os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, places)), **more}


def _parse(models: Path, kept: bool) -> Iterator[tuple[str, Run]]:
    for name, keep in (("ast.parse", False), ("ast.parse, trees kept", True)):
        if kept or not keep:
            code = "import pathlib, sys; from benchmarks.stopwatch import time_parsing; "
            code += f"print(time_parsing(pathlib.Path(sys.argv[1]), kept={keep}))"
            run = measure([sys.executable, "-c", code, models], folder=ROOT)
            yield name, replace(run, seconds=float(run.output))


def _check(models: Path, scratch: Path, accept: tuple[int, ...] = (0,)) -> Iterator[tuple[str, Run]]:
    for name in ("check, cold", "check, warm"):
        yield name, _ours("check", "--jobs", JOBS, "--exit-zero", models, cache=scratch, accept=accept)


def _mlinter(python: Path, models: Path, scratch: Path, accept: tuple[int, ...] = (1,)) -> Iterator[tuple[str, Run]]:
    def lint(cache: str, *options: str | Path) -> Run:
        # It ends with 1 where it found something, as it does in every release of transformers.
        command = [python, "-m", "mlinter", *options, models]
        return measure(command, environment={"XDG_CACHE_HOME": str(scratch / cache)}, accept=accept)

    for name in ("mlinter, cold", "mlinter, warm"):
        yield name, lint("all")
    rules = next(python.parent.parent.glob("lib/python*/site-packages/mlinter/rules.toml"))
    alone = scratch / "alone.toml"
    alone.write_text(only_rule(rules.read_text(encoding="utf-8"), RULE), encoding="utf-8")
    yield f"mlinter {RULE} alone", lint("one", "--rules-toml", alone)


def only_rule(text: str, rule: str) -> str:
    """The rules table of mlinter with all but one switched off: no option of its command line does that."""
    tables = re.split(r"^(?=\[rules\.\w+\]$)", text, flags=re.MULTILINE)
    if not any(part.startswith(f"[rules.{rule}]\n") for part in tables):
        raise CommandFailed(f"this release of mlinter has no rule {rule}")
    off = re.compile(r"^default_enabled = true$", re.MULTILINE)
    return "".join(
        part if part.startswith(f"[rules.{rule}]\n") else off.sub("default_enabled = false", part) for part in tables
    )


def _mlinter_python(folder: Path) -> Path:
    """The interpreter of mlinter's own environment, which is made the first time."""
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        measure([sys.executable, "-m", "venv", "--clear", folder])
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        measure([*pip, "--constraint", ROOT / "constraints" / "base.txt", MLINTER])
        ready.touch()
    return python


def _apply(package: Path, scratch: Path) -> Iterator[tuple[str, Run]]:
    ours, theirs = (scratch / name / package.name for name in ("ours", "theirs"))
    for tree in (ours, theirs):
        shutil.copytree(package, tree, ignore=shutil.ignore_patterns("__pycache__"))
    # It ends with 1 where it leaves repairs that only `--unsafe` makes.
    yield "apply", _ours("apply", "--jobs", JOBS, ours / "models", cache=scratch / "cache", accept=(0, 1))
    # The tool looks for its command before it knows which options take a value: those stand behind it.
    command: list[str | Path] = [sys.executable, "-m", "libcst.tool", "codemod", "-x", "--no-format"]
    command += ["ckpt_surgery.static.commands.RepairAll", "--hide-progress", "-j", JOBS, theirs / "models"]
    yield "libcst codemod", measure(command, environment=_environment({}), folder=ROOT)
    require_same_work(*(tree / "models" for tree in (package, ours, theirs)), at_least=REWRITTEN)


def require_same_work(original: Path, ours: Path, theirs: Path, *, at_least: int) -> None:
    """Raise CommandFailed where the two rewrote different files, or so few that their times mean nothing."""
    rewritten = differing(original, ours)
    if len(rewritten) < at_least:
        raise CommandFailed(f"`apply` rewrote {len(rewritten)} files, and fewer than {at_least} prove nothing")
    if other := differing(ours, theirs):
        raise CommandFailed(f"`apply` and the libcst codemods left {len(other)} files different, {other[0]} for one")


def differing(one: Path, other: Path) -> list[str]:
    """The Python files that are not the same in two folders, named from the folders' top."""
    names = sorted({path.relative_to(top).as_posix() for top in (one, other) for path in top.rglob("*.py")})
    _, different, missing = filecmp.cmpfiles(one, other, names, shallow=False)
    return sorted((*different, *missing))


def _help(scratch: Path) -> Iterator[tuple[str, Run]]:
    for _ in range(HELPS):
        yield "--help", _ours("--help")
    if heavy := imported(["-m", "ckpt_surgery", "--help"], scratch):
        raise CommandFailed(f"`ckpt_surgery --help` imports {' and '.join(heavy)} and must do without")


def imported(words: Sequence[str], scratch: Path) -> list[str]:
    """Which heavy packages a Python command imports: empty ones stand in for them, installed or not."""
    for name in HEAVY:
        (scratch / f"{name}.py").touch()
    command = [sys.executable, "-X", "importtime", *words]
    run = measure(command, environment=_environment({}, first=scratch), keep=10**6)
    names = {line.rpartition("|")[2].strip() for line in run.errors.splitlines()}
    return [name for name in HEAVY if name in names]
