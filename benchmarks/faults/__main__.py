"""Ask every judge about every fault and its mended twin, and write docs/coverage/faults.md.

    python -m benchmarks.faults [NAME ...] [--jobs N] [--symptoms]

With names, or with `--symptoms`, nothing is written. Exit code 1 where a fault does not show, a twin shows
one, a judge of ours calls a twin faulty, or a judge crashes; 2 where there is no such fault.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.faults import report
from benchmarks.faults.case import CASES, FAULTY, MENDED, TWINS, Case, read_cases, twin
from benchmarks.faults.judges import JUDGES, LINTER, linter_command
from benchmarks.faults.worker import Question, ask_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser("faults", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the faults to ask about (default: all)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at once (default: 2)")
    parser.add_argument("--symptoms", action="store_true", help="only show that faults show, and twins do not")
    options = parser.parse_args(arguments)
    cases = read_cases()
    if unknown := [name for name in options.names if name not in {case.name for case in cases}]:
        print(f"faults: no such fault: {', '.join(unknown)}.", file=sys.stderr)
        return 2
    if not (options.names or options.symptoms or shutil.which(linter_command())):
        print(f"faults: `pip install transformers-mlinter`, or name its command in {LINTER}.", file=sys.stderr)
        return 2
    cases = [case for case in cases if not options.names or case.name in options.names]
    judges = () if options.symptoms else tuple(JUDGES)
    with tempfile.TemporaryDirectory() as folder:
        answers = asked(cases, judges, Path(folder), options.jobs)
    table = report.Table([report.Row.of(case, answers[case.name]) for case in cases])
    if not (options.names or options.symptoms):
        report.PAGE.write(report.figures_of(table))
        report.write_summary(table)
    wrong = table.wrong()
    print(*table.lines(), *wrong, sep="\n")
    return 1 if wrong else 0


def asked(
    cases: Sequence[Case], judges: Sequence[str], folder: Path, jobs: int
) -> Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]:
    """Write the twins of each case into a folder, and ask: answers by case, twin and question."""
    questions: dict[Question, tuple[Case, str]] = {}
    for case in cases:
        source = (CASES / f"{case.name}.py").read_text(encoding="utf-8")
        for which in TWINS:
            script = twin(source, which)
            cures = [case.cure] if case.cure and judges and which == FAULTY else []
            for what in ("symptom", *cures, *judges):
                path = folder / which / what / f"{case.name}.py"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(script, encoding="utf-8")
                questions[Question(what, path, case.ranks)] = case, which
    answers: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = defaultdict(lambda: {FAULTY: {}, MENDED: {}})
    for question, answer in ask_all(questions, jobs):
        case, which = questions[question]
        answers[case.name][which][question.what] = answer
    return answers


if __name__ == "__main__":
    sys.exit(main())
