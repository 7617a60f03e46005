"""Measure and test everything that needs one CUDA GPU, and write docs/gpu.md from what was measured.

All of it takes less than 40 minutes. With fewer, what does not fit is left out: the parts that prove most come first.
Every part is a process of its own with a time limit, and what it measures is kept in out/gpu: a run that was ended,
however it was, goes on where it stopped. Where the code, the machine or a version has changed since, everything is
measured anew. `--dry` runs every part on the processor with toy sizes, to show that the run holds together; its page
is put beside its json files and never into docs/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figures import ROOT
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import PARTS, Part, Result, State
from benchmarks.gpu.process import run_part
from benchmarks.progress import read_json, write_whole
from ckpt_surgery.text import listed

MINUTES = 40
_CODE = ("benchmarks", "ckpt_surgery", "codemods", "model_patches", "tests/gpu")


@dataclass(frozen=True, slots=True)
class Run:
    """The folder of a run's results, its machine, whether it is dry, and its total seconds."""

    folder: Path
    machine: Machine
    dry: bool
    seconds: float

    @property
    def page(self) -> Path:
        """The page that it writes: a dry run's is never among the documentation."""
        return self.folder / "gpu.md" if self.dry else ROOT / "docs" / "gpu.md"

    def file(self, part: Part) -> Path:
        """Return the json of a part."""
        return self.folder / f"{part.name}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not been run yet. Return 0; 1 where a target is missed or a part failed; 2 where none can run.

    Parts are no failure whose packages are not installed; the page says so.

    A dry run misses no target: its figures mean nothing.
    """
    options = _options(arguments)
    machine = this_machine(dry=options.dry)
    if machine.problem:
        print(f"gpu: {machine.problem}.", file=sys.stderr)
        print("gpu: `make gpu DRY=1` shows on the processor what would run.", file=sys.stderr)
        return 2
    folder = options.out or ROOT / "out" / ("gpu-dry" if options.dry else "gpu")
    run = Run(folder, machine, options.dry, 60 * options.minutes)
    _begin(run)
    wanted = [part for part in PARTS if not options.parts or part.name in options.parts]
    results = {part.name: Result.of(part, read_json(run.file(part))) for part in PARTS}
    for part in wanted:
        left = run.seconds - sum(result.seconds for result in results.values())
        results[part.name] = _result(part, run, left, again=options.again)
        write_page(run.page, list(results.values()), described(run, results.values()), dry=run.dry)
    print(f"gpu: the page is {run.page}", file=sys.stderr)
    ended = [results[p.name].ran if run.dry else results[p.name].ok for p in wanted if not p.missing]
    return 0 if all(ended) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(names)}")
    parser.add_argument("--dry", action="store_true", help="toy sizes on the processor")
    parser.add_argument("--again", action="store_true", help="run finished parts again")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"what all parts may take together (default: {MINUTES})"
    )
    parser.add_argument("--out", type=Path, help="the folder of the results (default: out/gpu, or out/gpu-dry)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(names):
        parser.error(f"there is no part {min(unknown)}: the parts are {', '.join(names)}")
    return options


def _begin(run: Run) -> None:
    """Drop what was measured with other code, on another machine or with other versions, and say so."""
    file = run.folder / "run.json"
    identity = {**run.machine.identity, "commit": commit(), "code": code_digest()}
    before = read_json(file)
    changed = [name for name in sorted({*before, *identity}) if before.get(name) != identity.get(name)]
    if before and changed:
        print(
            f"gpu: measured anew, because this is another {listed(changed)} than that of the results in {run.folder}",
            file=sys.stderr,
        )
    if changed:
        for part in PARTS:
            run.file(part).unlink(missing_ok=True)
        write_whole(file, json.dumps(identity, indent=2) + "\n")


def _result(part: Part, run: Run, left: float, *, again: bool) -> Result:
    """Return what a part measured: kept where it has ended, else what it measures now in the seconds that are left."""
    file = run.file(part)
    kept = Result.of(part, read_json(file))
    if again:
        file.unlink(missing_ok=True)
        left += kept.seconds
        kept = Result(part)
    if kept.state is State.ENDED and not kept.errors:
        print(f"gpu: {part.name}: kept from an earlier run", file=sys.stderr)
        return kept
    if part.missing:
        problem = f"{listed(part.missing)} {'is' if len(part.missing) == 1 else 'are'} not installed"
        print(f"gpu: {part.name}: skipped, {problem}", file=sys.stderr)
        return _keep(file, replace(kept, state=State.SKIPPED, problem=problem))
    if left < part.seconds:
        print(f"gpu: {part.name}: skipped, {max(left, 0):.0f} s are left", file=sys.stderr)
        if kept.state not in (State.WAITING, State.SKIPPED):
            return kept
        return _keep(file, replace(kept, state=State.SKIPPED, problem=_too_late(part, run, left)))
    print(f"gpu: {part.name}: would prove that {part.claim}", file=sys.stderr, flush=True)
    if not part.resumes:
        file.unlink(missing_ok=True)
    ended = run_part(part, file, dry=run.dry, seconds=min(part.limit, left))
    result = Result.of(part, read_json(file))
    state = State.STOPPED if ended.stopped else State.FAILED if ended.problem else State.ENDED
    problem = ended.problem or ("" if result.figures else "it wrote no figures")
    if problem and state is State.ENDED:
        state = State.FAILED
    seconds = kept.seconds + ended.seconds
    return _keep(file, replace(result, state=state, problem=problem, seconds=seconds, date=today()))


def _too_late(part: Part, run: Run, left: float) -> str:
    return f"it takes about {part.seconds} s, and of {run.seconds / 60:g} minutes {max(left, 0):.0f} s were left"


def _keep(file: Path, result: Result) -> Result:
    """Keep what became of a part beside its figures."""
    content = read_json(file)
    content |= {"state": str(result.state), "problem": result.problem, "seconds": result.seconds}
    content["date"] = result.date
    write_whole(file, json.dumps(content, indent=2) + "\n")
    return result


def commit() -> str:
    """Return the commit of the code; empty where it is not in a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def code_digest() -> str:
    """Return the start of a sha256 over the sources, committed or not."""
    digest = hashlib.sha256()
    for name in _CODE:
        for source in sorted((ROOT / name).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def today() -> str:
    """Return the date, as it stands on the page."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def described(run: Run, results: Iterable[Result]) -> Mapping[str, str]:
    """Return the machine and the versions, as the page names them, and when it was measured."""
    machine = run.machine
    dates = sorted({result.date for result in results if result.date})
    rows = {"device": machine.device, "date": " to ".join(dict.fromkeys((*dates[:1], *dates[-1:])))}
    if machine.memory:
        used = machine.memory - machine.free
        rows["device memory"] = f"{machine.memory / 2**30:.1f} GiB, {used / 2**30:.1f} GiB in use before"
    return {
        **rows,
        "processors": str(machine.processors),
        **machine.versions,
        "commit": commit()[:12],
        "sources": code_digest(),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("gpu: ended; run it again to go on.", file=sys.stderr)
        sys.exit(130)
