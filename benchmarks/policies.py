"""Every name of `wrap_blocks(save=...)` on tiny models of many families, held against the untouched model.

    python -m benchmarks.policies policies.jsonl [--jobs 2] [--minutes 30] [--page] ["Llama, attention" ...]

Each case, a family and a name, runs in a process of its own. Results are appended to the file, a line each; cases that
are in it already are passed over, so that a run that broke off goes on. --page writes those of the whole file into
docs/coverage/policies.json, in place of what there was of the installed release of transformers, and
docs/coverage/policies.md. Exits with 1 where a check failed or a case did not run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from math import inf
from pathlib import Path

from benchmarks import policies_report
from benchmarks.class_survey import rows_of, survey
from benchmarks.policies_report import cases, column_of, page, read_columns, write_column

SECONDS = 900.0
"""What one case may take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what the arguments name, and print what failed; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="policies", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=inf, help="begin no further case after so long")
    parser.add_argument("--page", action="store_true", help="write the page")
    options = parser.parse_intermixed_args(arguments)
    unknown = sorted(set(options.cases) - set(cases()))
    if unknown:
        parser.error(f"{unknown[0]!r} is no case: they are such as {cases()[0]!r}")
    import torch

    from benchmarks.policies_runs import examine
    from ckpt_surgery.tiny import model_classes

    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    model_classes()["LlamaForCausalLM"].load()  # what most classes import, once for the forks of all
    names = options.cases or cases()
    survey(names, options.file, examine, jobs=options.jobs, seconds=SECONDS, in_all=60 * options.minutes)
    torch.use_deterministic_algorithms(was)
    versions = {package: version(package).partition("+")[0] for package in ("torch", "transformers")}
    column = column_of(rows_of(options.file), versions)
    if options.page:
        write_column(column)
        policies_report.PAGE.write_text(page(read_columns()), encoding="utf-8")
    for name, setting in column.all_settings():
        if setting.failed:
            print(f"{name}: {', '.join(setting.failed)}: {setting}")
    for case, why in column.problems.items():
        print(f"{case}: {why}")
    print(f"{len(column.settings)} of {len(cases())} cases")
    return 1 if column.failed else 0


if __name__ == "__main__":
    sys.exit(main())
