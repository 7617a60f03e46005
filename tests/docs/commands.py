"""Run the pages' commands, each once for all pages, and compare their output with what is shown."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from ckpt_surgery.cli.main import app, main
from ckpt_surgery.survey.resolve import resolve_in
from ckpt_surgery.survey.target import SurveyTarget
from ckpt_surgery.survey.worker_pool import WorkerPool
from tests.docs.checkout import FILES, plant
from tests.releases import CACHE_VARIABLE
from tests.upstream.released import repository
from tests.warm_python import python_environment, run_python

ROOT = Path(__file__).parents[2]
CACHE = os.environ.get(CACHE_VARIABLE)
GENERATORS = ("docs.generate", "docs.draw", "docs.screenshot")
"""Our modules that write pages or pictures into the project, which are not run here."""


@dataclass(frozen=True)
class Command:
    """A line behind `$ ` in a console block, and what is shown below it."""

    line: str
    shown: tuple[str, ...] = ()


def extras(what: str) -> list[str] | None:
    """Return the project's extras in an install line; None if it names anything else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.fullmatch(r"\.(?:\[([a-z,-]+)\])?", what)
    names = [] if named is None or not named[1] else named[1].split(",")
    return names if named and set(names) <= project["optional-dependencies"].keys() else None


@dataclass(frozen=True)
class Run:
    """How a command ended, what it printed, and the new or changed files of the working folder."""

    code: int
    printed: str
    changed: frozenset[str]


def commands(text: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *shown = part.rstrip("\n").split("\n")
        yield Command(line, tuple(shown))


def command_faults(command: Command) -> list[str]:
    """Run one command, or check it without running it where it would take minutes or change this project."""
    match shlex.split(command.line):
        case ["ckpt_surgery", "pr", *_]:
            return run_faults(command, accepted=(0,))
        case ["ckpt_surgery" | "pytest", *_]:
            return run_faults(command, accepted=(0, 1))
        case ["ckpt_surgery", "run", *_] | ["torchrun", *_, "-m", "ckpt_surgery", "run", _]:
            return run_faults(command, accepted=(0,))
        case ["accelerate", "launch", "-m", "ckpt_surgery", "run", _]:
            return []  # tests/integrations/test_launchers.py runs it
        case [
            "deepspeed",
            "--module",
            "ckpt_surgery",
            "run",
            script,
        ]:  # run by hand; what it starts for a rank is this
            return run_faults(Command(f"python -m ckpt_surgery --local_rank=0 run {script}", ()), accepted=(0,))
        case ["torchrun", *_, script] if (ROOT / script).is_file():
            return run_faults(command, accepted=(0,))
        case ["python", "-m", "libcst.tool", *_]:
            changed = run(command.line).changed & FILES.keys()
            return run_faults(command, accepted=(0,)) or ([] if changed else [f"{command.line} changes nothing"])
        case ["python", "-m", "pip", "install", what]:
            return [] if what == "git+ADDRESS" or extras(what) is not None else [f"nobody knows how to install {what}"]
        case ["python", "-m", module, *arguments] if module.startswith("benchmarks."):
            return help_faults(command.line, run(f"python -m {shlex.join([module, *arguments, '--help'])}"), arguments)
        case ["python", script, *arguments] if (ROOT / script).is_file() and script.startswith("benchmarks/"):
            return help_faults(command.line, run(f"python {shlex.join([script, *arguments, '--help'])}"), arguments)
        case [("python" | ".venv/bin/python" | ".nox/tests_4/bin/python"), "-m", module, *arguments] if (
            module in GENERATORS
        ):
            return help_faults(command.line, run(f"python -m {shlex.join([module, '--help'])}"), arguments)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            existing = re.findall(r"^([a-z]+):.*##", makefile, re.MULTILINE)
            return [f"no target {target}" for target in targets or ["none"] if target not in existing]
        case [".venv/bin/nox", "-s", session, *arguments]:
            sessions = re.findall(r"^def (\w+)\(session:", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.M)
            missing = [f"no session {session}"] if session not in sessions else []
            paths = [word for word in arguments if "/" in word]
            return missing + [f"no file {path}" for path in paths if not (ROOT / path).exists()]
        case ["git", "config", "core.symlinks", "true"]:
            return []
    return [f"not known: {command.line}"]


def run_faults(command: Command, accepted: tuple[int, ...]) -> list[str]:
    """Check the exit code and the output of a command that is run."""
    done = run(command.line)
    faults = [] if done.code in accepted else [f"{command.line}: {done.printed}"]
    if fits(command.shown, done.printed):
        return faults
    return [*faults, f"{command.line} prints something else:\n{difference(command.shown, done.printed)}"]


def help_faults(line: str, helped: Run, arguments: list[str]) -> list[str]:
    """Check a command that was only asked for its help."""
    options = re.findall(r"--[a-z-]+", helped.printed)
    unknown = [word for word in arguments if word.startswith("--") and word not in options]
    return [f"{line}: {helped.printed}"] if helped.code or unknown else []


@cache
def run(line: str) -> Run:
    """Run a command in the working folder, after writing the checkout there."""
    plant()
    before = _contents()
    match shlex.split(line):
        case ["ckpt_surgery", "verify", *arguments] if "--all" in arguments:  # one model of them all
            arguments = [word for word in arguments if not re.fullmatch(r"--shard|\d+/\d+", word)]
            code, printed = ours("verify", *arguments, "--shard", "1/1500")
        case ["ckpt_surgery", "pr", checkout, *arguments]:
            with pytest.MonkeyPatch.context() as patch:
                if CACHE is None:
                    patch.delenv(CACHE_VARIABLE)
                else:
                    patch.setenv(CACHE_VARIABLE, CACHE)
                repository("5.23.0", Path(checkout))
                code, printed = ours("pr", checkout, *arguments)
        case ["ckpt_surgery", ("run" | "fit") as command, *arguments]:  # it takes the place of `__main__`
            room = ["--memory", "8GB"] if command == "fit" and "--memory" not in arguments else []  # no card is here
            code, printed = process("-m", "ckpt_surgery", command, *room, *arguments)
        case ["ckpt_surgery", *arguments]:
            code, printed = ours(*arguments)
        case ["pytest", *arguments]:
            code, printed = process("-m", "pytest", "-p", "no:cacheprovider", *arguments)
        case ["torchrun", "--nproc-per-node", ranks, "-m", "ckpt_surgery", "run", script]:
            code, printed = process("-m", "ckpt_surgery", "run", script, ranks=int(ranks))
        case ["torchrun", "--nproc-per-node", ranks, script]:
            code, printed = process(str(ROOT / script), ranks=int(ranks))
        case ["torchrun", *arguments, script]:
            code, printed = process("-m", "torch.distributed.run", *arguments, str(ROOT / script))
        case ["python", "-m", module, *arguments]:
            code, printed = process("-m", module, *arguments)
        case ["python", script, *arguments]:
            code, printed = process(str(ROOT / script), *arguments)
        case words:
            raise ValueError(f"not a command that is run: {words}")
    after = _contents()
    return Run(code, printed, frozenset(name for name in after if after[name] != before.get(name)))


def _contents() -> dict[str, bytes]:
    """Read the files of the working folder that a larger git checkout would not have."""
    names = [path for path in Path().glob("*") if path.name != "transformers"]
    files = [path for top in names for path in (top.rglob("*") if top.is_dir() else [top]) if path.is_file()]
    return {path.as_posix(): path.read_bytes() for path in files}


def fits(shown: tuple[str, ...], printed: str) -> bool:
    """Compare output with what is shown: `...` matches any lines, and a time in seconds any other."""
    if not shown:
        return True
    patterns = (r"(?:.*\n)*?" if line == "..." else re.escape(line.rstrip()) + r"\s*\n" for line in shown)
    pattern = re.sub(r"\d+\\\.\d\\ s", r"\\d+\\.\\d s", "".join(patterns))
    return re.fullmatch(pattern, printed) is not None


FEW = 10
"""So many lines are shown whole in a difference."""


def difference(shown: tuple[str, ...], printed: str) -> str:
    """Return the lines that a page shows and a command did not print (-), and those that it printed instead (+).

    Of many lines in the place of `...`, only those are given that resemble a missing one.
    """
    given, lines = ([_timeless(line) for line in each] for each in (shown, printed.splitlines()))
    rows: list[str] = []
    matcher = difflib.SequenceMatcher(None, given, lines, autojunk=False)
    for _, start, end, first, last in matcher.get_opcodes():
        missing, instead = [line for line in given[start:end] if line != "..."], lines[first:last]
        any_lines = "..." in given[start:end]
        if given[start:end] == instead or (any_lines and not missing):
            continue
        if any_lines and len(instead) > FEW:
            instead = [line for each in missing for line in difflib.get_close_matches(each, instead, 1)]
        rows += [*(f"- {line}" for line in missing), *(f"+ {line}" for line in instead[:FEW])]
        rows += [f"+ ({len(instead) - FEW} more lines)"] if len(instead) > FEW else []
    return "\n".join(rows) or printed


def _timeless(line: str) -> str:
    return re.sub(r"\d+\.\d s", "0.0 s", line.rstrip())


@cache
def options() -> frozenset[str]:
    """Collect all options of the command line and of the pytest plugin."""
    root: Any = typer.main.get_command(app)
    parameters = [each for command in (root, *root.commands.values()) for each in command.params if not each.hidden]
    helped = process("-m", "pytest", "-p", "no:cacheprovider", "--help")[1]
    plugin = re.findall(r"--ckpt-[a-z]+", helped)
    names = [name for each in parameters for name in (*each.opts, *each.secondary_opts)]
    return frozenset(name for name in (*names, *plugin, "--help") if name.startswith("--"))


@contextlib.contextmanager
def shared_pool() -> Iterator[None]:
    """Let all `verify` commands inside share one fork server and one list of all models: both take seconds."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        pools: list[WorkerPool] = []
        models: dict[str, list[SurveyTarget]] = {}

        def resolved(pool: WorkerPool, **options: Any) -> list[SurveyTarget]:
            if not options.get("everything"):
                return resolve_in(pool, **options)
            return models.get(str(options)) or models.setdefault(str(options), resolve_in(pool, **options))

        def pool(**options: Any) -> AbstractContextManager[WorkerPool]:
            if options:  # of another Python
                return WorkerPool(**options)
            if not pools:
                pools.append(stack.enter_context(WorkerPool()))
            return nullcontext(pools[0])

        patch.setattr("ckpt_surgery.survey.worker_pool.WorkerPool", pool)
        patch.setattr("ckpt_surgery.survey.resolve.resolve_in", resolved)
        yield


def ours(*arguments: str) -> tuple[int, str]:
    """Run the command line in this process; return its exit code and all that it printed."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(arguments)
    return code, out.getvalue() + error.getvalue()


def process(*words: str, ranks: int = 0) -> tuple[int, str]:
    """Run a Python command in a separate process, or on so many ranks."""
    # in continuous integration pytest shortens no line of its summary
    environment = {name: value for name, value in python_environment().items() if name not in ("CI", "BUILD_NUMBER")}
    done = run_python(*words, cwd=Path.cwd(), environment=environment, ranks=ranks)
    return done.returncode, done.stdout + done.stderr
