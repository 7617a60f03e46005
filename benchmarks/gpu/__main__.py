"""Measure and test everything that needs one CUDA GPU, and write docs/gpu.md from what was measured.

All of it takes less than 20 minutes. With fewer, what does not fit is left out: the parts that prove most come first.
Every part is a process of its own with a time limit, and what it measures is kept in out/gpu: a run that was ended
goes on with the part that it did not finish. Where the code, the device or a version has changed since, everything is
measured anew. `--dry` runs every part on the processor with toy sizes, to show that the run holds together; its page
is put beside its json files and never into docs/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.device import PROCESSOR
from benchmarks.figures import ROOT
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import PARTS, Part, Result, State
from benchmarks.progress import read_json, write_whole
from ckpt_surgery.measure.versions import installed_versions
from ckpt_surgery.text import listed, one_line

MINUTES = 20
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "TOKENIZERS_PARALLELISM": "false",
}
"""What every part has in its environment. Segments that expand leave no gaps where a long sequence finds no room."""
_CODE = ("benchmarks", "ckpt_surgery", "codemods", "model_patches", "tests/gpu")
_WELL = (0, 1)
"""The codes of a benchmark that came to its end: all targets met, or one missed. Python's for an error is 1, too."""


@dataclass(frozen=True, slots=True)
class Run:
    """The folder of a run's results, whether it is dry, and its total seconds."""

    folder: Path
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

    Parts are no failure whose packages are not installed; the page says so. A dry run misses no target: its figures
    mean nothing.
    """
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(names)}")
    parser.add_argument("--dry", action="store_true", help="toy sizes on the processor")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"what all parts may take together (default: {MINUTES})"
    )
    parser.add_argument("--out", type=Path, help="the folder of the results (default: out/gpu, or out/gpu-dry)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(names):
        parser.error(f"there is no part {min(unknown)}: the parts are {', '.join(names)}")
    device, problem = (PROCESSOR.name, "") if options.dry else gpu_name()
    if problem:
        print(f"gpu: torch finds no GPU that it can use ({problem}).", file=sys.stderr)
        print("gpu: `make gpu DRY=1` shows on the processor what would run.", file=sys.stderr)
        return 2
    folder = options.out or ROOT / "out" / ("gpu-dry" if options.dry else "gpu")
    run = Run(folder, options.dry, 60 * options.minutes)
    identity = {"device": device, **installed_versions(), "sources": code_digest()}
    begin(run, identity)
    results = {part.name: Result.of(part, read_json(run.file(part))) for part in PARTS}
    wanted = [part for part in PARTS if not options.parts or part.name in options.parts]
    for part in wanted:
        left = run.seconds - sum(result.seconds for result in results.values())
        results[part.name] = result_of(part, run, left)
        write_page(run.page, list(results.values()), {**identity, "date": today()}, dry=run.dry)
    print(f"gpu: the page is {run.page}", file=sys.stderr)
    ended = [results[p.name].ran if run.dry else results[p.name].ok for p in wanted if not p.missing]
    return 0 if all(ended) else 1


def gpu_name() -> tuple[str, str]:
    """Return the GPU as torch names it, or why there is none. Another process asks: this one takes nothing of it."""
    code = "import torch; torch.cuda.init(); print(torch.cuda.get_device_name(), '(CUDA', torch.version.cuda + ')')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = (ran.stderr if ran.returncode else ran.stdout).strip().splitlines() or ["no words"]
    return ("", one_line(lines[-1])) if ran.returncode else (lines[-1], "")


def begin(run: Run, identity: Mapping[str, str]) -> None:
    """Drop what was measured with other code, on another device or with other versions, and say so."""
    file = run.folder / "run.json"
    before = read_json(file)
    changed = [name for name in sorted({*before, *identity}) if before.get(name) != identity.get(name)]
    if before and changed:
        which = f"another {listed(changed)} than that of the results in {run.folder}"
        print(f"gpu: measured anew, because this is {which}", file=sys.stderr)
    if changed:
        for part in PARTS:
            run.file(part).unlink(missing_ok=True)
        write_whole(file, json.dumps(identity, indent=2) + "\n")


def result_of(part: Part, run: Run, left: float) -> Result:
    """Return what a part measured: kept where it has ended, else what it measures now in the seconds that are left."""
    file = run.file(part)
    kept = Result.of(part, read_json(file))
    if kept.state is State.ENDED and not kept.errors:
        print(f"gpu: {part.name}: kept from an earlier run", file=sys.stderr)
        return kept
    skipped = ""
    if part.missing:
        skipped = f"{listed(part.missing)} {'is' if len(part.missing) == 1 else 'are'} not installed"
    elif left < part.seconds:
        if kept.state not in (State.WAITING, State.SKIPPED):
            return kept
        skipped = (
            f"it takes about {part.seconds} s, and of {run.seconds / 60:g} minutes {max(left, 0):.0f} s were left"
        )
    if skipped:
        print(f"gpu: {part.name}: skipped: {skipped}", file=sys.stderr)
        return _keep(file, replace(kept, state=State.SKIPPED, problem=skipped))
    print(f"gpu: {part.name}: would prove that {part.claim}", file=sys.stderr, flush=True)
    file.unlink(missing_ok=True)
    start = time.monotonic()
    state, problem = run_part(part, file, dry=run.dry, seconds=min(part.limit, left))
    result = Result.of(part, read_json(file))
    if not (problem or result.figures):
        state, problem = State.FAILED, "it wrote no figures"
    return _keep(file, replace(result, state=state, problem=problem, seconds=time.monotonic() - start))


def run_part(part: Part, file: Path, *, dry: bool, seconds: float) -> tuple[State, str]:
    """Run a part for so many seconds at most; return how far it came, and its problem if it has one.

    What it says on stderr is shown as it comes.
    """
    environment = {**os.environ, **SETTINGS, **({"CUDA_VISIBLE_DEVICES": ""} if dry else {})}
    process = subprocess.Popen(
        part.command(file, dry=dry),
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = threading.Event()

    def stop() -> None:
        late.set()
        kill()

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it has started

    timer = threading.Timer(seconds, stop)
    timer.start()
    last = ""
    try:
        for line in process.stderr or ():
            print(line, end="", file=sys.stderr, flush=True)
            last = line.strip() or last
        code = process.wait()
    finally:
        timer.cancel()
        kill()
    if late.is_set():
        return State.STOPPED, f"it was stopped after {seconds:.0f} s"
    content = read_json(file)
    if code in _WELL and content and content.get("finished", True):
        return State.ENDED, ""
    how = f"it was killed by signal {-code}" if code < 0 else f"the command ended with {code}"
    return State.FAILED, how + (f": {one_line(last)}" if last else "")


def _keep(file: Path, result: Result) -> Result:
    """Keep what became of a part beside its figures."""
    became = {"state": str(result.state), "problem": result.problem, "seconds": result.seconds}
    write_whole(file, json.dumps({**read_json(file), **became}, indent=2) + "\n")
    return result


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


if __name__ == "__main__":
    sys.exit(main())
