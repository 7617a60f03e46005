"""Run the tests marked `gpu` and write their outcomes as json, like the figures of a benchmark."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.device import device_of
from benchmarks.figures import ROOT, Figure, Target, document
from benchmarks.gpu import DRY_RUN


class Outcomes:
    """A pytest plugin that counts the outcomes of the tests and collects those that failed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: when it was called, or when its setup was skipped or failed."""
        if report.when == "call" or not report.passed:
            self.counts[report.outcome] += 1
            if report.failed:
                self.failed.append(report.nodeid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests. Return 0; 1 if one failed or none passed."""
    parser = argparse.ArgumentParser(prog="gpu tests", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="on the processor")
    parser.add_argument("--out", type=Path, required=True, help="the json")
    options = parser.parse_args(arguments)
    if options.dry:
        os.environ[DRY_RUN] = "1"
    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", "-m", "gpu", str(ROOT / "tests" / "gpu")], plugins=[outcomes])
    figures = [
        Figure("tests passed", (outcomes.counts["passed"],), "", Target(1, at_least=True)),
        Figure("tests failed", (outcomes.counts["failed"],), "", Target(0)),
        Figure("tests skipped", (outcomes.counts["skipped"],), ""),
    ]
    device = device_of(toy=options.dry)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    text = document(figures, device=device.name if device else "", failed=outcomes.failed)
    options.out.write_text(text, encoding="utf-8")
    return 1 if any(figure.verdict == "missed" for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
