"""How fast is `verify`, and where does the time go? All models of the installed transformers, or a part of them.

Runs the command as a user does, weighs all its processes together, and adds up what each phase took in the
reports. Prints a table of figures and targets; writes json. All of them take about 8 minutes on two idle cores;
`--shard 1/20` takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import RenderableType
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.figures import Figure, Target, finish, option_parser, plain_table
from benchmarks.stopwatch import CommandFailed, children

ONE_TYPE = "gpt_bigcode"
_SAMPLE_SECONDS = 0.5
_LONGEST = 10
GIGABYTE = 10**9
"""The unit of memory here."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One run of the command: wall seconds, the peak of all its processes together in bytes, and its document."""

    seconds: float
    peak: int
    document: Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    try:
        _say(f"verify {ONE_TYPE}")
        one = run([ONE_TYPE], options.jobs)
        _say("verify --all" + (f" --shard {options.shard}" if options.shard else ""))
        shard = ["--shard", options.shard] if options.shard else []
        many = run(["--all", *shard], options.jobs)
    except CommandFailed as error:
        print(f"verify_speed: {error}.", file=sys.stderr)
        return 2
    measured = figures(one, many, options.jobs, whole=not options.shard)
    shown: list[RenderableType] = [table(measured, many), *longest(many.document["reports"])]
    text = as_json(measured, many, options.jobs, options.shard)
    return finish("verify_speed", measured, text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("verify_speed", __doc__)
    parser.add_argument("--shard", default="", metavar="I/N", help="only this part of the models; no target then")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worker processes (default: 2)")
    return parser.parse_args(arguments)


def run(arguments: Sequence[str], jobs: int, command: Sequence[str] = ("-m", "ckpt_surgery")) -> Survey:
    """Run `verify` with these arguments to its end. Raises CommandFailed where it ends without a report."""
    with tempfile.TemporaryDirectory(prefix="verify-speed-") as folder, tempfile.TemporaryFile("w+") as errors:
        output = Path(folder) / "report.json"
        words = [sys.executable, *command, "verify", *arguments]
        words += ["--jobs", str(jobs), "--exit-zero", "--output-format", "json", "--output", str(output)]
        start = perf_counter()
        process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ}
        )
        peak = _peak(process)
        seconds = perf_counter() - start
        if process.returncode or not output.is_file():
            errors.seek(0)
            said = errors.read().strip().splitlines()
            code = process.returncode
            raise CommandFailed(f"`{' '.join(words)}` ended with {code}: {said[-1] if said else 'no words'}")
        return Survey(seconds, peak, json.loads(output.read_text(encoding="utf-8")))


def _peak(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process; the most memory that it and all below it had at one time."""
    done = threading.Event()
    peaks = [0]

    def sample() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            peaks[0] = max(peaks[0], tree_memory(process.pid))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        process.wait()
    except BaseException:
        process.terminate()
        raise
    finally:
        done.set()
        sampler.join()
    return peaks[0]


def tree_memory(root: int) -> int:
    """The memory of a process and of all below it, in bytes: a page that several share counts once in all.

    It is the proportional set size of proc(5); 0 where that is not available.
    """
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
        waiting += children(pid)
    return total


def spent(reports: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """The seconds of each phase, over all reports."""
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds.update(report["seconds"])
    return seconds


def figures(one: Survey, many: Survey, jobs: int, *, whole: bool) -> list[Figure]:
    """Times, speed and memory; the targets of a whole survey only where it is whole, and on two workers."""
    reports = many.document["reports"]
    phases = spent(reports)
    targets = {"all": Target(480.0), "memory": Target(6.0)} if whole and jobs == 2 else {}
    return [
        Figure(f"verify {ONE_TYPE}, imports included", (one.seconds,), "s", Target(15.0)),
        Figure("verify --all" if whole else "verify, the shard", (many.seconds,), "s", targets.get("all")),
        Figure("peak of all processes together", (many.peak / GIGABYTE,), "GB", targets.get("memory")),
        Figure("classes", (float(len(reports)),), ""),
        Figure("classes a minute", (60 * len(reports) / many.seconds,), "1/min"),
        *(Figure(f"in workers: {phase}", (seconds,), "s") for phase, seconds in phases.items()),
        Figure("in workers: imports, waiting and the rest", (jobs * many.seconds - phases.total(),), "s"),
    ]


def longest(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """The classes that took most time, one a line."""
    slow = sorted(reports, key=lambda report: -sum(report["seconds"].values()))[:_LONGEST]
    return [
        f"{sum(report['seconds'].values()):6.1f} s  {report['model']}  "
        + ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in report["seconds"].items())
        for report in slow
    ]


def table(measured: Sequence[Figure], many: Survey) -> Table:
    """The figures, under how many classes have which verdict."""
    counts = Counter(report["status"] for report in many.document["reports"])
    return plain_table(
        f"verify: {', '.join(f'{number} {status}' for status, number in counts.most_common())}", measured
    )


def as_json(measured: Sequence[Figure], many: Survey, jobs: int, shard: str) -> str:
    """The figures, what they were measured with, and the seconds of every class."""
    document = {
        "versions": many.document["versions"],
        "processors": os.cpu_count(),
        "jobs": jobs,
        "shard": shard,
        "figures": {figure.name: {"value": figure.median, "unit": figure.unit} for figure in measured},
        "classes": [
            {key: report[key] for key in ("model", "variant", "status", "seconds")}
            for report in many.document["reports"]
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _say(text: str) -> None:
    print(f"verify_speed: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
