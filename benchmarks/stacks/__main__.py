"""What does `wrap_blocks` find and save in models of other libraries, and is it right?

Needs the packages of the nox session `stacks`. Writes docs/coverage/stacks.json and docs/coverage/stacks.md. Ten
minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from benchmarks.screen import progress_bar
from benchmarks.stacks import other_cases, torch_cases
from benchmarks.stacks.case import Case
from benchmarks.stacks.report import FIGURES, PAGE, Row, Stacks, page, read_stacks, write_stacks

DISTRIBUTIONS = {
    "torch": "torch",
    "torchvision": "torchvision",
    "timm": "timm",
    "diffusers": "diffusers",
    "open_clip": "open_clip_torch",
    "sentence-transformers": "sentence-transformers",
    "x-transformers": "x-transformers",
    "torchtune": "torchtune",
}
"""The libraries, with the distributions that bring them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models. Return 0; 1 where a goal is missed; 2 where a library is missing."""
    parser = argparse.ArgumentParser(prog="stacks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"some of {', '.join(DISTRIBUTIONS)}")
    wanted = parser.parse_args(arguments).libraries or list(DISTRIBUTIONS)
    versions = {}
    for name in wanted:
        if name not in DISTRIBUTIONS:
            print(f"stacks: {name} is none of {', '.join(DISTRIBUTIONS)}.", file=sys.stderr)
            return 2
        try:
            versions[name] = version(DISTRIBUTIONS[name]).partition("+")[0]
        except PackageNotFoundError:
            print(f"stacks: {DISTRIBUTIONS[name]} is not installed: run `nox -s stacks`.", file=sys.stderr)
            return 2
    declare_operators()
    chosen = [case for case in (*torch_cases.cases(), *other_cases.cases()) if case.library in wanted]
    rows = measured(chosen)
    stacks = Stacks(versions, rows)
    if len(wanted) < len(DISTRIBUTIONS) and FIGURES.exists():
        stacks = merged(read_stacks(), stacks)
    write_stacks(stacks)
    PAGE.write_text(page(stacks), encoding="utf-8")
    missed = [row for row in rows if row.wrong or row.keeps_more]
    for row in missed:
        print(f"stacks: {row.library}: {row.model}, {row.depth}: {row}", file=sys.stderr)
    return 1 if missed else 0


def measured(cases: Sequence[Case]) -> list[Row]:
    """A row for each case."""
    from benchmarks.stacks.measure import measure

    rows = []
    with progress_bar() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for done, case in enumerate(cases):
            if progress:
                progress(case.name, done, len(cases))
            rows.append(measure(case))
    return rows


def merged(before: Stacks, new: Stacks) -> Stacks:
    """What was measured before, with new rows in place of those of the same libraries."""
    rows = {
        name: [row for row in (new if name in new.versions else before).rows if row.library == name]
        for name in DISTRIBUTIONS
    }
    return Stacks({**before.versions, **new.versions}, [row for some in rows.values() for row in some])


def declare_operators() -> None:
    """Declare the two operators without which torchvision cannot be imported.

    The wheel on PyPI is built for CUDA, and its operators are not to be had beside a torch without CUDA.
    """
    if find_spec("torchvision") is None:
        return
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "__main__":
    sys.exit(main())
