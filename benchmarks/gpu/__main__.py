"""Measure and test everything that needs one CUDA GPU, and write docs/gpu.md from what was measured.

Every part is a process of its own with a time limit, and its json is kept in out/gpu: an interrupted run goes on where
it stopped, as long as neither the code nor the machine has changed. All of them take less than 30 minutes on an H100.
`--dry` runs every part on the processor with toy sizes, to show that the run holds together; its page is put beside
its json files and never into docs/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device import Device, device_of
from benchmarks.gpu.page import Result, write_page
from benchmarks.gpu.parts import PARTS, Part
from ckpt_surgery.measure.versions import installed_versions

_CODE = ("benchmarks", "ckpt_surgery", "codemods", "model_patches", "tests/gpu")


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run keeps its results, on which device it runs, and whether it is a dry one."""

    folder: Path
    device: Device
    dry: bool

    @property
    def key(self) -> str:
        """What results belong to: this code on this machine with these versions."""
        digest = hashlib.sha256(json.dumps([self.device.name, installed_versions()]).encode())
        for name in _CODE:
            for source in sorted((ROOT / name).rglob("*.py")):
                digest.update(source.read_bytes())
        return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not been run yet. Return 0; 1 where a target is missed or a part failed; 2 where none can run."""
    options = _options(arguments)
    device = device_of(toy=options.dry)
    if device is None:
        print(
            "gpu: torch sees no CUDA GPU here: `make gpu DRY=1` shows on the processor what would run.",
            file=sys.stderr,
        )
        return 2
    run = Run(options.out or ROOT / "out" / ("gpu-dry" if options.dry else "gpu"), device, options.dry)
    parts = [part for part in PARTS if not options.parts or part.name in options.parts]
    results = [_result(part, run, again=options.again) for part in parts]
    page = run.folder / "gpu.md" if options.dry else ROOT / "docs" / "gpu.md"
    if len(parts) == len(PARTS):
        write_page(page, results, machine(device), dry=options.dry)
        print(f"gpu: the page is {page}", file=sys.stderr)
    return 1 if any(not result.ok for result in results) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these, and no page: {', '.join(names)}")
    parser.add_argument("--dry", action="store_true", help="toy sizes on the processor")
    parser.add_argument("--again", action="store_true", help="run finished parts again")
    parser.add_argument("--out", type=Path, help="the folder of the results (default: out/gpu, or out/gpu-dry)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(names):
        parser.error(f"there is no part {min(unknown)}: the parts are {', '.join(names)}")
    return options


def _result(part: Part, run: Run, *, again: bool) -> Result:
    """What a part measured: the kept result where there is one for this code and machine, or a new one."""
    file = run.folder / f"{part.name}.json"
    kept = _read(file)
    if not again and kept.get("key") == run.key:
        print(f"gpu: {part.name}: kept from an earlier run", file=sys.stderr)
        return Result.of(part, kept)
    print(f"gpu: {part.name}: {part.question}", file=sys.stderr, flush=True)
    run.folder.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    start = time.monotonic()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    try:
        command = part.command(file, dry=run.dry)
        code = subprocess.run(command, cwd=ROOT, env=environment, timeout=part.seconds, check=False).returncode
        problem = "" if code in (0, 1) else f"the command ended with {code}"
    except subprocess.TimeoutExpired:
        problem = f"it was stopped after {part.seconds} s"
    content = _read(file)
    if not content:
        return Result(part, problem or "it wrote no figures", {}, time.monotonic() - start)
    content.update(key=run.key, seconds=time.monotonic() - start, problem=problem)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return Result.of(part, content)


def _read(file: Path) -> dict[str, Any]:
    """The content of a json file; empty where there is none that can be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def machine(device: Device) -> dict[str, str]:
    """The machine and the versions, as the page names them."""
    versions = installed_versions()
    described = {
        "device": device.name,
        "processors": str(os.cpu_count()),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "Python": platform.python_version(),
        **versions,
    }
    if device.kind == "cuda":
        import torch

        described["CUDA"] = str(torch.version.cuda)
        described["device memory"] = f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f} GiB"
    return described


if __name__ == "__main__":
    sys.exit(main())
