"""What do the self-check and the guard cost a step of a real size, in time and in memory?

Steps of a Llama-like model of 1.1 billion parameters in bfloat16, wrapped: without checks, with one block checking
itself in each step, with every block, between the checked steps of a guard, in checked ones, and in those in which a
block is proved. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device import Device, wanted_device
from benchmarks.device_steps import GIGABYTE, Steps, ratio, seconds_and_peak, timed_steps
from benchmarks.figures import Figure, Target, finish, gpu_parser, lacking, plain_table
from benchmarks.progress import Kept, Progress


@dataclass(frozen=True, slots=True)
class Way:
    """One way to watch steps: how often they check themselves, and the guard's steps, if there is one.

    A guard checks every `guarded`-th step, and proves a block in each. `target` is what a step may take, in units of
    one without checks.
    """

    name: str
    self_check: Any = "never"
    guarded: int = 0
    prove: bool = False
    target: Target | None = None


NONE = Way("no check")
IN_TURN = Way("self-check, one block a step", self_check="first", target=Target(1.01))
CHECKED = Way("self-check, every block", self_check="always", target=Target(1.05))
BETWEEN = Way("guard, between checked steps", guarded=10**9, target=Target(1.01))
WATCHED = Way("guard, checked steps", guarded=1, target=Target(1.05))
PROVED = Way("guard, a block proved in every step", guarded=1, prove=True, target=Target(1.30))
WAYS = (NONE, IN_TURN, CHECKED, BETWEEN, WATCHED, PROVED)
TOKENS, TOY_TOKENS = 8 * 1024, 64
_STEPS, _WARM_UP, _TOY_WARM_UP = 10, 5, 3
"""The warm-up takes the first three steps, which a guard always checks, and the self-check by default."""
ALL = Target(1.0, at_least=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("check_cost", "torch", "transformers"):
        return 2
    if (device := wanted_device("check_cost", toy=options.toy)) is None:
        return 2
    tokens = TOY_TOKENS if options.toy else TOKENS
    progress = Progress("check_cost", options.out, figures, device, resume=options.resume, tokens=tokens)
    for way in WAYS:
        progress.measure(way.name, measurement(way, tokens, device, toy=options.toy))
    shown = [plain_table(f"checks, {tokens} tokens: {device.name}", progress.figures)]
    return finish("check_cost", progress.figures, progress.text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    return gpu_parser("check_cost", __doc__).parse_args(arguments)


def measurement(way: Way, tokens: int, device: Device, *, toy: bool) -> Callable[[], dict[str, Any]]:
    """A function that measures steps in one way; with a guard also what it saw."""

    def measured() -> dict[str, Any]:
        import torch

        from benchmarks.offload import LARGE, LAYERS, TOY, TOY_LAYERS, llama, loss_of, token_ids
        from ckpt_surgery import guard, wrap_blocks

        model = llama(TOY_LAYERS if toy else LAYERS, TOY if toy else LARGE, device.kind, torch.bfloat16)
        ids = token_ids(tokens, device.kind)
        wrap_blocks(model, self_check=way.self_check)
        watching = guard(model, every=way.guarded, prove=way.prove, on_fault="collect") if way.guarded else None
        warm_up, steps = (_TOY_WARM_UP, 1) if toy else (_WARM_UP, _STEPS)
        taken = timed_steps(model, lambda: loss_of(model, ids), device, warm_up=warm_up, steps=steps).to_dict()
        if watching is None:
            return taken
        report = watching.report()
        alone = max((block.proof.alone_bytes for block in report.blocks), default=0)
        expected = min(len(report.blocks), warm_up + steps) if way.prove else 0
        right = not report.faults and report.proved >= expected
        return {**taken, "right": right, "proved": report.proved, "block": alone}

    return measured


def figures(kept: Kept) -> list[Figure]:
    """Seconds and peak of each way, and their ratios to steps without checks."""
    steps: Mapping[Way, Steps] = {way: Steps.of(kept[way.name]) for way in WAYS if kept.get(way.name)}
    measured = [figure for way, each in steps.items() for figure in seconds_and_peak("steps", way.name, each)]
    if (none := steps.get(NONE)) is not None:
        for way, each in steps.items():
            if way != NONE:
                measured.append(ratio(f"a step, {way.name} / {NONE.name}", each.median, none.median, way.target))
                measured.append(Figure(f"peak, {way.name} - {NONE.name}", ((each.peak - none.peak) / GIGABYTE,), "GB"))
    for way in steps:
        if "right" in kept[way.name]:
            measured.append(Figure(f"{way.name}: no false alarm", (float(kept[way.name]["right"]),), "", ALL))
    if PROVED in steps:
        measured.append(Figure("blocks proved", (kept[PROVED.name]["proved"],), ""))
        measured.append(Figure("what a block keeps alone", (kept[PROVED.name]["block"] / GIGABYTE,), "GB"))
    return measured


if __name__ == "__main__":
    sys.exit(main())
