"""Measure and test everything that needs one CUDA GPU, and write docs/gpu.md from what was measured.

All of it takes less than 20 minutes. With fewer, what does not fit is left out: the parts that prove most come first.
Every part is a process of its own with a time limit, and what it measures is kept in out/gpu. `--dry` runs every part
on the processor with toy sizes, to show that the run holds together; its page is put beside its json files and never
into docs/.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.device import PROCESSOR
from benchmarks.figures import ROOT
from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import PARTS, Part, Result, State
from benchmarks.progress import read_json
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
    """Run the parts. Return 0; 1 where a target is missed or a part failed; 2 where none can run.

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
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder, options.dry, 60 * options.minutes)
    identity = {"device": device, **installed_versions(), "sources": code_digest()}
    results = {part.name: Result(part) for part in PARTS}
    wanted = [part for part in PARTS if not options.parts or part.name in options.parts]
    for part in wanted:
        left = run.seconds - sum(result.seconds for result in results.values())
        results[part.name] = result_of(part, run, left)
        write_page(
            run.page, list(results.values()), {**identity, "date": f"{datetime.now(UTC):%Y-%m-%d}"}, dry=run.dry
        )
    print(f"gpu: the page is {run.page}", file=sys.stderr)
    ended = [results[p.name].ran if run.dry else results[p.name].ok for p in wanted if not p.missing]
    return 0 if all(ended) else 1


def gpu_name() -> tuple[str, str]:
    """Return the GPU as torch names it, or why there is none. Another process asks: this one takes nothing of it."""
    code = "import torch; torch.cuda.init(); print(torch.cuda.get_device_name(), '(CUDA', torch.version.cuda + ')')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = (ran.stderr if ran.returncode else ran.stdout).strip().splitlines() or ["no words"]
    return ("", one_line(lines[-1])) if ran.returncode else (lines[-1], "")


def result_of(part: Part, run: Run, left: float) -> Result:
    """Return what a part measures in the seconds that are left."""
    skipped = ""
    if part.missing:
        skipped = f"{listed(part.missing)} {'is' if len(part.missing) == 1 else 'are'} not installed"
    elif left < part.seconds:
        minutes = f"of {run.seconds / 60:g} minutes {max(left, 0):.0f} s were left"
        skipped = f"it takes about {part.seconds} s, and {minutes}"
    if skipped:
        print(f"gpu: {part.name}: skipped: {skipped}", file=sys.stderr)
        return Result(part, State.SKIPPED, skipped)
    file = run.file(part)
    print(f"gpu: {part.name}: would prove that {part.claim}", file=sys.stderr, flush=True)
    file.unlink(missing_ok=True)
    start = time.monotonic()
    state, problem = run_part(part, file, dry=run.dry, seconds=min(2 * part.seconds, left))
    result = Result.of(part, read_json(file))
    if not (problem or result.figures):
        state, problem = State.FAILED, "it wrote no figures"
    return replace(result, state=state, problem=problem, seconds=time.monotonic() - start)


def run_part(part: Part, file: Path, *, dry: bool, seconds: float) -> tuple[State, str]:
    """Run a part for so many seconds at most; return how far it came, and its problem if it has one."""
    environment = {**os.environ, **SETTINGS, **({"CUDA_VISIBLE_DEVICES": ""} if dry else {})}
    log = file.with_suffix(".log")
    print(f"gpu: {part.name}: it says in {log} how far it is", file=sys.stderr, flush=True)
    with log.open("w", encoding="utf-8") as messages:
        command = part.command(file, dry=dry)
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=messages, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return State.STOPPED, f"it was stopped after {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it has started
            process.wait()
    content = read_json(file)
    if code in _WELL and content and content.get("finished", True):
        return State.ENDED, ""
    how = f"it was killed by signal {-code}" if code < 0 else f"the command ended with {code}"
    last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
    return State.FAILED, ": ".join([how, *map(one_line, last)])


def code_digest() -> str:
    """Return the start of a sha256 over the sources, committed or not."""
    digest = hashlib.sha256()
    for name in _CODE:
        for source in sorted((ROOT / name).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
