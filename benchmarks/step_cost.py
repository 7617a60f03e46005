"""What does a checkpointed training step cost: bytes, FLOPs, time, and Python around each call of a block?

No checkpointing, transformers' own, torch's checkpoint_wrapper on the same blocks, and `wrap_blocks` without its
self-check, on tiny models of several families, on one thread of the processor or on a GPU. Prints what each way costs
and which targets are met; writes json. Works on transformers 4 and 5, and takes about two minutes on an idle core.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, TypeVar

from rich.table import Table

from benchmarks.figures import Figure, Target, document, finish, option_parser, plain_table, rounds_option
from ckpt_surgery.measure.versions import installed_versions

if TYPE_CHECKING:
    from torch import nn

W = TypeVar("W")
NONE, THEIRS, WRAPPER, OURS = "no checkpointing", "transformers", "checkpoint_wrapper", "wrap_blocks"
WAYS = (NONE, THEIRS, WRAPPER, OURS, REENTRANT := "transformers, reentrant")
_WRAPPED = "._checkpoint_wrapped_module"
"""What checkpoint_wrapper adds to the names of what it wraps."""
_NO_CACHE = {"use_cache": False}
"""checkpoint_wrapper hands a cache on, and the recompute writes it a second time."""
_WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
FAMILIES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "Llama": ("LlamaForCausalLM", {"num_hidden_layers": 6}),
    "Llama, wide": ("LlamaForCausalLM", {**_WIDE, "head_dim": 64, "num_hidden_layers": 4}),
    "GPTBigCode": ("GPTBigCodeForCausalLM", {"num_hidden_layers": 4}),
    "Mixtral": ("MixtralForCausalLM", {"num_hidden_layers": 4}),
    "T5": ("T5ForConditionalGeneration", {}),
    "Swin": ("SwinModel", {}),
    "SwiftFormer": ("SwiftFormerModel", {}),
    "Zamba": ("ZambaForCausalLM", {}),
    "Zamba2": ("Zamba2ForCausalLM", {}),
}
"""The models to measure: their classes, and what their tiny configurations are to say otherwise."""
NOT_MORE, LESS = Target(0), Target(-1)
"""Bytes and FLOPs are whole numbers."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One step in one way. `faults` are those that `compare` finds beside the step without checkpointing.

    `kept_bytes` are held between forward and backward; `seconds` are those of each timed step: processor seconds on
    the CPU, on a GPU the time until the host has queued the step. A step that has not `ended` raised an error, and
    none is timed.
    """

    kept_bytes: int
    forward_flops: int
    backward_flops: int
    faults: tuple[str, ...] = ()
    ended: bool = True
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A family in every way. `calls` of blocks are in one forward; `nested` tells whether blocks contain blocks."""

    family: str
    calls: int
    nested: bool
    costs: Mapping[str, Cost] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 if a target is missed, 2 where it could not run."""
    parser = option_parser("step_cost", __doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"only some of {', '.join(FAMILIES)}")
    parser.add_argument("--rounds", type=rounds_option, default=20, metavar="N", help="timed steps (default: 20)")
    parser.add_argument("--toy", action="store_true", help="one round of the first family")
    parser.add_argument("--gpu", action="store_true", help="on the GPU; the seconds are the host's")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    problem = ""
    if unknown := set(options.families) - set(FAMILIES):
        problem = f"there is no family {min(unknown)}: those measured are {', '.join(FAMILIES)}"
    elif options.gpu and not torch.cuda.is_available():
        problem = "torch sees no CUDA device here: leave --gpu out"
    if problem:
        print(f"step_cost: {problem}.", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rounds, chosen = (1, ("Llama",)) if options.toy else (options.rounds, options.families or FAMILIES)
    families = []
    for family in chosen:
        print(f"step_cost: {family}", file=sys.stderr, flush=True)
        families.append(measure(family, rounds, "cuda" if options.gpu else "cpu"))
    measured = [figure for family in families for figure in figures(family)]
    text = document(measured, families=[asdict(family) for family in families])
    shown = [cost_table(families, rounds), plain_table("targets", measured)]
    return finish("step_cost", measured, text, options.out, shown, 140)


def measure(family: str, rounds: int, device: str = "cpu") -> Measured:
    """Count what a step of a family takes in every way, and time `rounds` steps of each, in turn."""
    import torch
    import transformers

    from ckpt_surgery.runtime.blocks.discovery import find_blocks
    from ckpt_surgery.tiny import tiny_model

    name, options = FAMILIES[family]
    tiny = tiny_model(getattr(transformers, name), options={**_NO_CACHE, **options})
    tiny.model.train().to(device)
    inputs = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in tiny.inputs.items()}
    models = {way: ready(tiny.model, way) for way in WAYS}
    costs = counted(models, inputs)
    seconds = timed({way: model for way, model in models.items() if costs[way].ended}, inputs, rounds, device)
    blocks = find_blocks(tiny.model)
    made = {way: replace(cost, seconds=seconds.get(way, ())) for way, cost in costs.items()}
    return Measured(family, block_calls(models[NONE], inputs), any(block.inside for block in blocks), made)


def ready(model: nn.Module, way: str) -> nn.Module:
    """Copy `model`, and checkpoint the copy in this way."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    from ckpt_surgery import wrap_blocks
    from ckpt_surgery.measure.switch import switch_checkpointing

    own = copy.deepcopy(model)
    if way == OURS:
        wrap_blocks(own, self_check="never")
        return own
    switch_checkpointing(own, {THEIRS: "non_reentrant", REENTRANT: "reentrant"}.get(way))  # type: ignore[arg-type]
    if way == WRAPPER:
        outermost = _outermost(own)
        apply_activation_checkpointing(own, check_fn=lambda module: module in outermost)
    return own


def counted(models: Mapping[str, nn.Module], inputs: Mapping[str, Any]) -> dict[str, Cost]:
    """Count bytes, FLOPs and faults of the first step of each model."""
    from ckpt_surgery.measure.compare import compare
    from ckpt_surgery.measure.step import run_step
    from ckpt_surgery.measure.switch import as_it_stands
    from ckpt_surgery.runtime.blocks.discovery import find_blocks

    records = {}
    for way, model in models.items():
        names = {block: name.replace(_WRAPPED, "") for name, block in model.named_modules()}
        blocks = {names[block.module]: block.module for block in find_blocks(model)}
        mode: Any = "reentrant" if way == REENTRANT else "non_reentrant" if way in (THEIRS, OURS) else None
        record = run_step(model, inputs, blocks=blocks, checkpointing=mode, switch=as_it_stands)
        both = {name.replace(_WRAPPED, ""): each for name, each in record.gradients.items()}
        buffers = {name.replace(_WRAPPED, ""): each for name, each in record.buffers.items()}
        records[way] = replace(record, gradients=both, buffers=buffers)
    return {
        way: Cost(
            record.memory.kept,
            record.flops.forward,
            record.flops.backward,
            () if way == NONE else tuple(str(fault) for fault in compare(records[NONE], record).faults),
            record.error is None,
        )
        for way, record in records.items()
    }


def timed(
    models: Mapping[W, nn.Module], inputs: Mapping[str, Any], rounds: int, device: str = "cpu"
) -> dict[W, tuple[float, ...]]:
    """Time `rounds` steps of each model on the host; every round has one of each, in another order.

    A step right after one of the same model finds warm caches: in a fixed order that would always be the same models.
    On a GPU a step starts when the device is idle and ends when the host has queued it all.
    """
    import torch

    from ckpt_surgery.measure.loss import loss_of
    from ckpt_surgery.runtime.self_check.schedule import FIRST_STEPS

    def step(model: nn.Module) -> None:
        model.zero_grad(set_to_none=True)
        loss_of(model(**inputs)).backward()  # type: ignore[no-untyped-call]

    clock = process_time if device == "cpu" else perf_counter
    seconds: dict[W, list[float]] = {way: [] for way in models}
    for model in models.values():
        for _ in range(FIRST_STEPS):
            step(model)
    gc.collect()
    shuffled = random.Random(0)
    for _ in range(rounds):
        for way in shuffled.sample(tuple(models), len(models)):
            if device != "cpu":
                torch.cuda.synchronize()
            start = clock()
            step(models[way])
            seconds[way].append(clock() - start)
    return {way: tuple(times) for way, times in seconds.items()}


def block_calls(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Count the calls of the outermost blocks in one forward."""
    calls: list[nn.Module] = []
    handles = [block.register_forward_pre_hook(lambda module, _: calls.append(module)) for block in _outermost(model)]
    model(**inputs)
    for handle in handles:
        handle.remove()
    return len(calls)


def _outermost(model: nn.Module) -> Sequence[nn.Module]:
    from ckpt_surgery.runtime.blocks.discovery import find_blocks

    return [block.module for block in find_blocks(model) if not block.inside]


def figures(measured: Measured) -> Iterator[Figure]:
    """Yield what must be no more than with the best of the other ways that are right."""
    name, ours, theirs = measured.family, measured.costs[OURS], measured.costs[THEIRS]
    right = [cost for way, cost in measured.costs.items() if way not in (NONE, OURS) and not cost.faults]
    yield Figure(f"{name}: faults", (len(ours.faults),), "", NOT_MORE)
    if right:
        kept = ours.kept_bytes - min(cost.kept_bytes for cost in right)
        work = ours.backward_flops - min(cost.backward_flops for cost in right)
        yield Figure(f"{name}: kept over the best of the others", (kept,), "bytes", NOT_MORE)
        yield Figure(f"{name}: work over the best of the others", (work,), "FLOPs", NOT_MORE)
    if measured.nested and theirs.faults:  # where they are right, nothing is computed three times
        less = ours.backward_flops - theirs.backward_flops
        yield Figure(f"{name}: work over transformers' own, nested", (less,), "FLOPs", LESS)
    if price := overhead(measured):
        yield Figure(f"{name}: a call over transformers' own", price, "us")


def overhead(measured: Measured) -> tuple[float, ...]:
    """Return what a call of a block costs with `wrap_blocks` over transformers' own, in microseconds, by round.

    Nothing where transformers' own does not do the same work: it is not right, or its blocks are nested.
    """
    theirs, ours = measured.costs[THEIRS], measured.costs[OURS]
    if theirs.faults or theirs.backward_flops != ours.backward_flops:
        return ()
    pairs = zip(ours.seconds, theirs.seconds, strict=True)
    return tuple(1e6 * (one - other) / measured.calls for one, other in pairs)


def cost_table(families: Sequence[Measured], rounds: int) -> Table:
    """Show what each way costs in each family, next to no checkpointing."""
    versions = installed_versions()
    releases = f"transformers {versions['transformers']}, torch {versions['torch']}"
    grid = Table(title=f"one step on {releases}; times: medians of {rounds}", title_style="bold")
    for name in ("family", "way", "right"):
        grid.add_column(name, no_wrap=True)
    for name in ("kept bytes", "of none's", "backward / forward FLOPs", "step time, of none's"):
        grid.add_column(name, justify="right")
    for measured in families:
        none = measured.costs[NONE]
        for way, cost in measured.costs.items():
            grid.add_row(
                measured.family if way == NONE else "",
                way,
                "" if way == NONE else "no" if cost.faults else "yes",
                f"{cost.kept_bytes:,}",
                f"{cost.kept_bytes / none.kept_bytes:.3f}",
                f"{cost.backward_flops / cost.forward_flops:.3f}" if cost.ended else "",
                f"{statistics.median(cost.seconds) / statistics.median(none.seconds):.2f}" if cost.seconds else "",
            )
        grid.add_section()
    return grid


if __name__ == "__main__":
    sys.exit(main())
