"""Run the tests marked `gpu` and write their outcomes as json, like the figures of a benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, Target, document
from benchmarks.gpu import DRY_RUN
from benchmarks.progress import write_whole
from benchmarks.stopwatch import run_tests


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests. Return 0; 1 if one failed or none passed."""
    parser = argparse.ArgumentParser(prog="gpu tests", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="on the processor")
    parser.add_argument("--out", type=Path, required=True, help="the json")
    options = parser.parse_args(arguments)
    ran = run_tests("-m", "gpu", "tests/gpu", environment={DRY_RUN: "1"} if options.dry else {})
    figures = [
        Figure("tests passed", (ran["passed"],), "", Target(1, at_least=True)),
        Figure("tests failed", (len(ran["failed"]),), "", Target(0)),
        Figure("tests skipped", (ran["skipped"],), ""),
    ]
    write_whole(options.out, document(figures, failed=ran["failed"]))
    return 1 if any(figure.verdict == "missed" for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
