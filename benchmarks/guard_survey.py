"""The guard's proof of blocks one at a time, held against `verify` on the whole model.

    python -m benchmarks.guard_survey guard_survey.jsonl [--jobs 2] [--sample 300] [--minutes 30] [--page] [CLASS ...]

Each class is a tiny model with random weights, in a process of its own. They come in a random order, the same each
time, so that as many as were done are a random sample. Results are appended to the file, a line each; classes that are
in it already are passed over, so that a run that broke off goes on. --page writes docs/coverage/guard.json and
docs/coverage/guard.md from the whole file.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.class_survey import rows_of, survey
from benchmarks.guard_survey_report import DISAGREEMENTS, PAGE, Comparison, figures_of, page, write_guard
from ckpt_surgery.measure.results import MODES, Mode

SECONDS = 120.0
"""What one class may take."""


def examine(name: str) -> dict[str, Any]:
    """The comparison for one class, by mode, under the key modes."""
    from ckpt_surgery import tiny_model, verify
    from ckpt_surgery.measure.kinds import FaultKind
    from ckpt_surgery.tiny import model_classes

    entry = model_classes()[name]
    tiny = tiny_model(entry.load(), entry.config_class(entry.model_type))
    report = verify(tiny.model, tiny.inputs, levels=["run", "set", "values", "state"])
    verdicts = {verdict.mode: verdict for verdict in report.modes}
    rows: dict[str, Any] = {}
    for mode in MODES:
        if mode not in verdicts or any(fault.level == "run" for fault in verdicts[mode].faults):
            rows[mode] = {"comparison": Comparison.NOT_RUN}
            continue
        faults = verdicts[mode].faults
        broken = {name for fault in faults if fault.level != "state" for name in fault.subjects}
        changed = {name for fault in faults if fault.kind is FaultKind.BUFFER_CHANGED for name in fault.subjects}
        rows[mode] = _compared(broken, changed, **_watched(tiny, mode))
    return {"modes": rows}


def _watched(tiny: Any, mode: Mode) -> dict[str, Any]:
    """What the guard says of the model as it is, in as many steps as it has blocks."""
    import torch

    from ckpt_surgery import guard
    from ckpt_surgery.guarding.faults import GuardFaultKind
    from ckpt_surgery.measure.loss import loss_of
    from ckpt_surgery.measure.switch import switch_of

    model = tiny.model.train()
    switch_of(model)(model, mode)
    with guard(model, on_fault="collect", patience=2) as watching:
        for number in range(max(len(watching.report().blocks), 2)):
            torch.manual_seed(number)
            loss_of(model(**tiny.inputs)).backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
        report = watching.report()
    wrong = [fault.subjects for fault in report.faults if fault.kind is GuardFaultKind.WRONG_GRADIENTS]
    names = {f"{block}.{name}" for block, *inside in wrong for name in inside if " " not in name}
    statuses = Counter(str(row.proof.status) for row in report.blocks)
    names |= {name for f in report.faults if f.kind is GuardFaultKind.UNTRAINED for name in f.subjects}
    twice = (GuardFaultKind.WRITTEN_TWICE, GuardFaultKind.GROWN_TWICE)
    written = {f"{f.subjects[0]}.{name}" for f in report.faults if f.kind in twice for name in f.subjects[1:]}
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {
        "wrong": names,
        "blocks": {subjects[0] for subjects in wrong},
        "written": written & buffers,
        "attributes": sorted(written - buffers),
        "statuses": statuses,
        "report": report,
    }


def _compared(
    broken: set[str],
    changed: set[str],
    *,
    wrong: set[str],
    blocks: set[str],
    written: set[str],
    attributes: list[str],
    statuses: Mapping[str, int],
    report: Any,
) -> dict[str, Any]:
    """Hold what verify calls `broken`, and the buffers `changed` there, against what the guard calls so."""
    from ckpt_surgery.guarding.proof import ProofStatus

    judged = (ProofStatus.PROVED, ProofStatus.WRONG, ProofStatus.WRITTEN_TWICE)
    unproved = sum(count for status, count in statuses.items() if status not in judged)
    missed = (broken if not broken & wrong else set()) | (changed - written)
    if (blocks and not broken) or written - changed:
        comparison = Comparison.ONLY_GUARD
    elif missed:
        comparison = Comparison.NOT_VOUCHED if unproved else Comparison.ONLY_VERIFY
    elif broken or changed:
        comparison = Comparison.BOTH_BROKEN
    else:
        comparison = Comparison.NOT_PROVED if unproved else Comparison.SAME
    in_verify, in_guard = broken | changed, wrong | written
    named = in_verify & in_guard
    details = [row.proof.detail for row in report.blocks if row.proof.detail]
    return {
        "comparison": comparison,
        "statuses": dict(statuses),
        "broken": len(in_verify),
        "named": len(named),
        "verify": sorted(in_verify)[:5],
        "guard": sorted(named or in_guard)[:5],
        "missed": sorted(in_verify - in_guard)[:5],
        "attributes": attributes[:5],
        "detail": details[:1],
    }


def counts(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many classes and modes agree, by comparison; classes without a verdict together."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update([mode["comparison"] for mode in row["modes"].values()] if "modes" in row else ["no verdict"])
    return found


def main() -> int:
    """Survey what the arguments name, and print the counts; 1 where guard and verify disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("classes", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int, help="examine no more than so many classes")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no further class after so long")
    parser.add_argument("--page", action="store_true", help="write the page")
    options = parser.parse_intermixed_args()
    import ckpt_surgery.guarding.guard
    import ckpt_surgery.measure.verify  # noqa: F401
    from ckpt_surgery.survey.model_names import catalogue
    from ckpt_surgery.tiny import model_classes

    model_classes()["LlamaForCausalLM"].load()  # what most classes import, once for the forks of all

    known = sorted(catalogue())
    names = options.classes or Random(0).sample(known, len(known))[: options.sample]
    survey(names, options.file, examine, jobs=options.jobs, seconds=SECONDS, in_all=60 * options.minutes)
    if options.page:
        versions = {package: version(package) for package in ("torch", "transformers")}
        figures = figures_of(rows_of(options.file), versions, len(known))
        write_guard(figures)
        PAGE.write_text(page(figures), encoding="utf-8")
    found = counts(rows_of(options.file))
    for comparison, count in found.most_common():
        print(f"{count:5} {comparison}")
    return 1 if any(found[comparison] for comparison in DISAGREEMENTS) else 0


if __name__ == "__main__":
    sys.exit(main())
