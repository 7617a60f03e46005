"""What does it bring to keep some results of a block instead of running their operators again?

Steps of a Llama-like model of 1.1 billion parameters in bfloat16, with half its layers at 128K tokens: without
checkpointing, with all of each block run again, and with `save` of `wrap_blocks` for attention, every second product
and both. Beside them torch's own selective checkpointing for attention, switched on through transformers: what axolotl
does for `selective_checkpointing: true` (axolotl-ai-cloud/axolotl, pull request 3786). Prints a table; writes json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device import Device, wanted_device
from benchmarks.device_steps import Steps, own_switch, ratio, seconds_and_peak, timed_steps
from benchmarks.figures import Figure, Target, finish, gpu_parser, lacking, plain_table
from benchmarks.progress import Kept, Progress

NONE, FULL, TORCH = "no checkpointing", "all run again", "torch's policy for attention"
ATTENTION, MATMUL, BOTH = "save attention", "save matmul:2", "save attention, matmul:2"
SAVED: Mapping[str, tuple[str, ...]] = {
    ATTENTION: ("attention",),
    MATMUL: ("matmul:2",),
    BOTH: ("attention", "matmul:2"),
}
"""What `save` names, by the way."""
WAYS = (NONE, FULL, *SAVED, TORCH)
NO_SLOWER, NO_MORE = Target(1.02), Target(1.01)
"""Next to torch's own policy that keeps the same."""
FASTER = Target(1.0)
"""Next to a step in which all is run again."""
SAME_LOSS, SAME_GRADIENTS = Target(0.0), Target(1e-3)
"""The loss to the bit; attention adds up its gradients in no fixed order on a GPU."""
_STEPS, _WARM_UP, _LONG_STEPS = 5, 2, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("policies", "torch", "transformers"):
        return 2
    if (device := wanted_device("policies", toy=options.toy)) is None:
        return 2
    from benchmarks.offload import FEW, LONG, TOKENS, TOY_TOKENS

    lengths = options.tokens or (TOY_TOKENS if options.toy else TOKENS)
    progress = Progress(
        "policies", options.out, lambda kept: figures(kept, lengths), device, resume=options.resume, tokens=lengths
    )
    for length in lengths:
        for way in WAYS:
            progress.measure(f"{length} tokens, {way}", measurement(way, length, device, toy=options.toy))
    if not options.toy and any(length > LONG for length in lengths):
        progress.note(FEW)
    shown = [plain_table(f"policies: {device.name}", progress.figures)]
    return finish("policies", progress.figures, progress.text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = gpu_parser("policies", __doc__)
    parser.add_argument("--tokens", type=int, nargs="+", metavar="N", help="sequence lengths")
    return parser.parse_args(arguments)


def measurement(way: str, tokens: int, device: Device, *, toy: bool) -> Callable[[], dict[str, Any]]:
    """A function that measures steps in one way."""

    def measured() -> dict[str, Any]:
        import torch

        from benchmarks.offload import FEW_LAYERS, LARGE, LAYERS, LONG, TOY, TOY_LAYERS, llama, loss_of, token_ids

        long = tokens > LONG
        layers = TOY_LAYERS if toy else FEW_LAYERS if long else LAYERS
        model = llama(layers, TOY if toy else LARGE, device.kind, torch.bfloat16)
        ids = token_ids(tokens, device.kind)
        with enabled(way, model):
            return timed_steps(
                model,
                lambda: loss_of(model, ids),
                device,
                warm_up=1 if long or toy else _WARM_UP,
                steps=_LONG_STEPS if long or toy else _STEPS,
            ).to_dict()

    return measured


@contextmanager
def enabled(way: str, model: Any) -> Iterator[Any]:
    """Checkpointing in this way."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    from ckpt_surgery import wrap_blocks

    if way == TORCH:
        contexts = partial(create_selective_checkpoint_contexts, keeps_attention)
        own_switch(model, "enable")({"use_reentrant": False, "context_fn": contexts})
        yield None
        own_switch(model, "disable")()
    elif way == NONE:
        yield None
    else:
        with wrap_blocks(model, save=SAVED.get(way), self_check="never") as surgery:
            yield surgery


def keeps_attention(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> Any:
    """A policy of torch's own selective checkpointing: the kernels of attention are kept, the rest is run again."""
    from torch.utils.checkpoint import CheckpointPolicy

    name = str(operator)
    is_attention = "dot_product" in name or "flash_attn" in name
    return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE


def figures(kept: Kept, lengths: Sequence[int]) -> list[Figure]:
    """Seconds and peak of each way, and the ratios to a step in which all is run again."""
    measured: list[Figure] = []
    for length in lengths:
        where = f"{length // 1024}K" if length >= 1024 else f"{length} tokens"
        by_way = {way: Steps.of(kept[name]) for way in WAYS if kept.get(name := f"{length} tokens, {way}")}
        for way, steps in by_way.items():
            measured += seconds_and_peak(where, way, steps)
        measured += ratios(where, by_way)
    return measured


def ratios(where: str, by_way: Mapping[str, Steps]) -> Iterator[Figure]:
    """Each way to a step in which all is run again, and `save` of attention to torch's own policy."""
    full, ours, theirs = (by_way.get(way) for way in (FULL, ATTENTION, TORCH))
    for way, steps in by_way.items():
        if full is not None and way != FULL:
            faster = FASTER if way in SAVED else None
            yield ratio(f"{where}: a step, {way} / {FULL}", steps.median, full.median, faster)
            yield ratio(f"{where}: peak, {way} / {FULL}", steps.peak, full.peak)
            yield ratio(f"{where}: loss, {way} / {FULL} - 1", abs(steps.loss - full.loss), full.loss, SAME_LOSS)
            apart = abs(steps.norm - full.norm)
            yield ratio(f"{where}: gradient norm, {way} / {FULL} - 1", apart, full.norm, SAME_GRADIENTS)
    if ours is not None and theirs is not None:
        yield ratio(f"{where}: a step, {ATTENTION} / {TORCH}", ours.median, theirs.median, NO_SLOWER)
        yield ratio(f"{where}: peak, {ATTENTION} / {TORCH}", ours.peak, theirs.peak, NO_MORE)


if __name__ == "__main__":
    sys.exit(main())
