"""The guard's proof of blocks one at a time, compared with `verify` on the whole model.

    python -m benchmarks.guard_survey guard_survey.jsonl --minutes 30 --page

Each class of the installed transformers is a tiny model with random weights. Exits with 1 where guard and verify
disagree.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benchmarks.survey import MODELS, Page, Row, Survey, installed, model_names, tiny, written_by
from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.text import code, listed, markdown_table, plural, prose, titled


class Comparison(StrEnum):
    """How the proof of the blocks agrees with the verdict on the whole model."""

    SAME = "no fault in either, and every block is proved"
    NOT_PROVED = "no fault in either, and some blocks are not proved: the report says why"
    BOTH_BROKEN = "a fault in both, and the guard names parameters that `verify` names"
    NOT_VOUCHED = "`verify` finds a fault, and some blocks are not proved: the report says why"
    ONLY_VERIFY = "`verify` finds a fault, and every block is proved"
    ONLY_GUARD = "the guard calls a block wrong where `verify` finds no fault"
    NOT_RUN = "the class claims no checkpointing, or the step with it raises: nothing to prove"


DISAGREEMENTS = (Comparison.ONLY_GUARD, Comparison.ONLY_VERIFY)


@dataclass(frozen=True, slots=True)
class Watched:
    """The guard's report on a model.

    Attributes:
        statuses: how many blocks ended so, by status.
        wrong: parameters that it names, and `blocks` those in which they are.
        written: buffers that it saw written twice.
    """

    statuses: Mapping[str, int]
    wrong: frozenset[str] = frozenset()
    blocks: frozenset[str] = frozenset()
    written: frozenset[str] = field(default_factory=frozenset)


def measure(name: str) -> Row:
    """Compare guard and verify for one class, by mode."""
    from ckpt_surgery import verify
    from ckpt_surgery.measure.kinds import FaultKind
    from ckpt_surgery.runtime.tools.classes import BATCH_COUNT

    made = tiny(name)
    report = verify(made.model, made.inputs, levels=["run", "set", "values", "state"])
    verdicts = {verdict.mode: verdict for verdict in report.modes}
    modes: dict[str, Any] = {}
    for mode in MODES:
        if mode not in verdicts or any(fault.level == "run" for fault in verdicts[mode].faults):
            modes[mode] = {"comparison": Comparison.NOT_RUN}
            continue
        faults = verdicts[mode].faults
        broken = {name for fault in faults if fault.level != "state" for name in fault.subjects}
        changed = {name for fault in faults if fault.kind is FaultKind.BUFFER_CHANGED for name in fault.subjects}
        changed = {name for name in changed if name.rpartition(".")[2] != BATCH_COUNT}  # the guard lets those be
        modes[mode] = compared(broken, changed, watched(made, mode))
    return {"modes": modes}


def watched(made: Any, mode: Mode) -> Watched:
    """Watch the model as it is, in as many steps as it has blocks."""
    import torch

    from ckpt_surgery import guard
    from ckpt_surgery.guarding.faults import GuardFaultKind
    from ckpt_surgery.measure.loss import loss_of
    from ckpt_surgery.measure.switch import switch_of

    model = made.model
    switch_of(model)(model, mode)
    with guard(model, on_fault="collect", patience=2) as watching:
        for number in range(max(len(watching.report().blocks), 2)):
            torch.manual_seed(number)
            loss_of(model(**made.inputs)).backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
        report = watching.report()
    wrong = [fault.subjects for fault in report.faults if fault.kind is GuardFaultKind.WRONG_GRADIENTS]
    names = {f"{block}.{name}" for block, *inside in wrong for name in inside if " " not in name}
    names |= {name for f in report.faults if f.kind is GuardFaultKind.UNTRAINED for name in f.subjects}
    twice = (GuardFaultKind.WRITTEN_TWICE, GuardFaultKind.GROWN_TWICE)
    written = {f"{f.subjects[0]}.{name}" for f in report.faults if f.kind in twice for name in f.subjects[1:]}
    return Watched(
        Counter(str(row.proof.status) for row in report.blocks),
        frozenset(names),
        frozenset(subjects[0] for subjects in wrong),
        frozenset(written.intersection(name for name, _ in model.named_buffers(remove_duplicate=False))),
    )


def compared(broken: set[str], changed: set[str], seen: Watched) -> dict[str, Any]:
    """Hold the parameters that verify calls `broken`, and the buffers `changed`, against what the guard says."""
    from ckpt_surgery.guarding.proof import ProofStatus

    judged = (ProofStatus.PROVED, ProofStatus.WRONG, ProofStatus.WRITTEN_TWICE)
    unproved = sum(count for status, count in seen.statuses.items() if status not in judged)
    if (seen.blocks and not broken) or seen.written - changed:
        comparison = Comparison.ONLY_GUARD
    elif (broken and not broken & seen.wrong) or changed - seen.written:
        comparison = Comparison.NOT_VOUCHED if unproved else Comparison.ONLY_VERIFY
    elif broken or changed:
        comparison = Comparison.BOTH_BROKEN
    else:
        comparison = Comparison.NOT_PROVED if unproved else Comparison.SAME
    in_verify, in_guard = broken | changed, seen.wrong | seen.written
    named = in_verify & in_guard
    return {
        "comparison": comparison,
        "statuses": dict(seen.statuses),
        "verify": sorted(in_verify)[:5],
        "guard": sorted(named or in_guard)[:5],
        "broken": len(in_verify),
        "named": len(named),
        "missed": sorted(in_verify - in_guard)[:5],
    }


def figures_of(rows: Sequence[Row], known: int) -> dict[str, Any]:
    """Count the classes, of `known` ones, and keep those in which either finds a fault."""
    counts = {kind: dict.fromkeys(map(str, MODES), 0) for kind in Comparison}
    unproved: Counter[str] = Counter()
    kept = []
    for row in sorted(rows, key=lambda row: row["case"]):
        for mode, data in row.get("modes", {}).items():
            comparison = data["comparison"]
            counts[comparison][mode] += 1
            if comparison == Comparison.NOT_PROVED:
                unproved.update({status: n for status, n in data["statuses"].items() if status != "proved"})
            elif comparison not in (Comparison.SAME, Comparison.NOT_RUN):
                kept.append({"model": row["case"], "mode": mode, **data})
    return {
        "versions": installed("torch", "transformers"),
        "classes": len(rows),
        "known": known,
        "problems": Counter(row["problem"].split(":")[0] for row in rows if "problem" in row),
        "counts": counts,
        "rows": kept,
        "unproved": unproved,
    }


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    versions = listed([f"{name} {version}" for name, version in figures["versions"].items()])
    drawn = ", a random sample and classes in which `verify` finds lost or wrong gradients"
    rows = {kind: [row for row in figures["rows"] if row["comparison"] == kind] for kind in Comparison}
    counts = figures["counts"]
    yield "# The guard's proof of single blocks"
    yield (
        f"What `guard` says of tiny models with random weights, held against `verify` on the whole model "
        f"({versions}): {figures['classes']:,} of {plural(figures['known'], 'class', 'classes')}"
        f"{drawn if figures['classes'] < figures['known'] else ''}. `python -m benchmarks.guard_survey` measures it."
    )
    yield (
        f"{plural(sum(figures['problems'].values()), 'class has', 'classes have')} no comparison: no tiny model could "
        "be made, or its library refuses to switch checkpointing on."
    )
    shown = {kind: [f"{counts[kind][mode]:,}" for mode in MODES] for kind in Comparison if any(counts[kind].values())}
    yield markdown_table(["result", *MODES], [[kind, *cells] for kind, cells in shown.items()])
    yield "## Not proved"
    yield "Blocks of healthy classes that the guard did not prove, by its reason:"
    yield markdown_table(["reason", "blocks"], [[prose(name), f"{n:,}"] for name, n in figures["unproved"].items()])
    yield _section(
        "Where they disagree",
        "Where every block is proved, each has the right gradients for what reached it, and the fault is between "
        "them.",
        [row for kind in DISAGREEMENTS for row in rows[kind]],
    )
    yield _section(
        "Where the guard does not prove what `verify` calls wrong",
        "What the guard says of the blocks is the reason: a block that no gradient reaches, or that runs several "
        "times in a step, cannot be judged alone.",
        rows[Comparison.NOT_VOUCHED],
    )
    both = [
        [
            code(row["model"]),
            row["mode"],
            f"{row['named']:,} of {row['broken']:,}",
            *(listed([code(name) for name in row[key][:2]]) for key in ("guard", "missed")),
        ]
        for row in rows[Comparison.BOTH_BROKEN]
    ]
    heads = ["class", "mode", "named", "by the guard, such as", "only by `verify`, such as"]
    yield titled(
        "## Where both find a fault\n\n"
        "The guard names the parameters of the block that loses gradient, and `verify` also those before it: they get "
        "wrong gradients through that block, and each block there is right for what reached it. A block alone cannot "
        "show more.",
        markdown_table(heads, both) if both else "",
    )


def _section(title: str, why: str, rows: Sequence[Row]) -> str:
    body = []
    for row in rows:
        by = "guard" if row["comparison"] == Comparison.ONLY_GUARD else "verify"
        statuses = ", ".join(f"{status}: {count}" for status, count in row["statuses"].items())
        names = listed([code(name) for name in row[by][:2]])
        body.append([code(row["model"]), row["mode"], by, prose(statuses), names])
    heads = ["class", "mode", "named by", "blocks in the guard", "parameters, such as"]
    return titled(f"## {title}\n\n{why}", markdown_table(heads, body) if body else "")


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Show how many classes and modes agree how, and tell whether any disagrees."""
    figures = figures_of(rows, known)
    PAGE.show(figures, page)
    return any(any(figures["counts"][comparison].values()) for comparison in DISAGREEMENTS)


PAGE = Page("guard", written_by("python -m benchmarks.guard_survey", "guard"), sections)
SURVEY = Survey("guard_survey", __doc__, model_names, measure, conclude, MODELS)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
