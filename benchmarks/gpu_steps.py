"""What do steps of a real size take on a CUDA GPU in each way to checkpoint them: seconds, peak, loss and gradients?

    python -m benchmarks.gpu_steps offload

A Llama-like model of 1.1 billion parameters in bfloat16. A topic has its ways, and every ratio is taken in one run:
`offload`, what `save` keeps, and what `checks` cost. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.device import GIGABYTE, Device, own_switch, wanted_device
from benchmarks.figures import Figure, Target, finish, gpu_parser
from benchmarks.progress import Kept, Progress

if TYPE_CHECKING:
    from torch import Tensor, nn

LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4}
"""With 24 layers and a vocabulary of 32,000 it has 1.1 billion parameters."""
TOY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LAYERS, TOY_LAYERS, VOCABULARY = 24, 3, 32_000
TOY_LENGTHS = (64,)
LONG = 32 * 1024
"""From this many tokens on, the time of offload has a target."""
NO_THEIRS = "transformers' own offload is not measured: the installed release has none"
CHUNK = 1024
"""The loss is that of the last positions only: all positions still reach it through the attention."""
NONE, LIBRARY, OURS = "no checkpointing", "transformers", "wrap_blocks"
OFFLOAD, THEIRS, SAVE_ON_CPU = "wrap_blocks, offload", "transformers, offload", "save_on_cpu"
ATTENTION, MATMUL, BOTH = "save attention", "save matmul:2", "save attention, matmul:2"
SELECTIVE = "torch's policy for attention"
IN_TURN, CHECKED = "self-check, one block a step", "self-check, every block"
BETWEEN, WATCHED = "guard, between checked steps", "guard, checked steps"
PROVED = "guard, a block proved in every step"

Way = Callable[[Any], Any]
"""Checkpoints a model inside a context; gives the guard where there is one."""


@contextmanager
def library(model: Any, **options: Any) -> Iterator[None]:
    """Checkpoint with transformers' own switch. Offload pins memory, which takes an accelerator."""
    offload = {"offload": True} if options.pop("offload", False) and model.device.type != "cpu" else {}
    own_switch(model, "enable")({"use_reentrant": False, **options}, **offload)
    yield
    own_switch(model, "disable")()


@contextmanager
def saved_on_cpu(model: Any) -> Iterator[None]:
    """Checkpoint, and run the whole forward in torch's `save_on_cpu`: the inputs of checkpoints are what it saves."""
    from torch.autograd.graph import save_on_cpu

    forward = model.forward

    def saving(*args: Any, **kwargs: Any) -> Any:
        pinned = save_on_cpu(pin_memory=True, device_type=model.device.type)
        with pinned if model.device.type != "cpu" else nullcontext():
            return forward(*args, **kwargs)

    with library(model):
        model.forward = saving
        yield
        del model.forward


@contextmanager
def wrapped(model: Any, every: int = 0, prove: bool = False, **options: Any) -> Iterator[Any]:
    """Checkpoint with `wrap_blocks`, whose self-check is off by default; with `every`, under a guard."""
    from ckpt_surgery import guard, wrap_blocks

    with wrap_blocks(model, **{"self_check": "never", **options}):
        yield guard(model, every=every, prove=prove, on_fault="collect") if every else None


def keeps_attention(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Keep the kernels of attention: a policy of torch's selective checkpointing, as axolotl has it (its #3786)."""
    from torch.utils.checkpoint import CheckpointPolicy

    is_attention = any(name in str(operator) for name in ("dot_product", "flash_attn"))
    return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE


def selective(model: Any) -> Any:
    """Checkpoint with torch's own policy for attention, switched on through transformers."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return library(model, context_fn=partial(create_selective_checkpoint_contexts, keeps_attention))


WAYS: Mapping[str, Way] = {
    NONE: lambda model: nullcontext(),
    LIBRARY: library,
    OURS: wrapped,
    THEIRS: partial(library, offload=True),
    SAVE_ON_CPU: saved_on_cpu,
    OFFLOAD: partial(wrapped, offload="cpu"),
    ATTENTION: partial(wrapped, save=("attention",)),
    MATMUL: partial(wrapped, save=("matmul:2",)),
    BOTH: partial(wrapped, save=("attention", "matmul:2")),
    SELECTIVE: selective,
    IN_TURN: partial(wrapped, self_check="first"),
    CHECKED: partial(wrapped, self_check="always"),
    BETWEEN: partial(wrapped, every=10**9),
    WATCHED: partial(wrapped, every=1),
    PROVED: partial(wrapped, every=1, prove=True),
}


@dataclass(frozen=True, slots=True)
class Steps:
    """Timed steps: the seconds of each, the peak in bytes, loss and gradient norm, and whether the guard was right."""

    seconds: tuple[float, ...]
    peak: int
    loss: float
    norm: float
    right: bool | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A way's `step` or `peak` as a share of another's, and its limit; `long` texts only."""

    over: str
    under: str
    step: float | None = None
    peak: float | None = None
    long: bool = False


@dataclass(frozen=True, slots=True)
class Topic:
    """Ways that are measured together; the others need the first.

    Loss and gradients of each way are compared with those of `same`, where steps are not checked.
    """

    ways: tuple[str, ...]
    ratios: tuple[Ratio, ...]
    tokens: tuple[int, ...]
    same: str = ""


TOPICS = {
    "offload": Topic(
        (OFFLOAD, OURS, LIBRARY, THEIRS, SAVE_ON_CPU),
        (
            Ratio(OURS, LIBRARY, step=1.02, peak=1.01),
            Ratio(OFFLOAD, THEIRS, peak=1.0),
            Ratio(OFFLOAD, SAVE_ON_CPU),
            Ratio(OFFLOAD, OURS, step=1.03, long=True),
        ),
        (8192, LONG),
        same=OURS,
    ),
    "save": Topic(
        (ATTENTION, NONE, OURS, MATMUL, BOTH, SELECTIVE),
        (
            *(Ratio(way, OURS, step=1.0) for way in (ATTENTION, MATMUL, BOTH)),
            *(Ratio(way, OURS) for way in (NONE, SELECTIVE)),
            Ratio(ATTENTION, SELECTIVE, step=1.02, peak=1.01),
        ),
        (8192, LONG),
        same=OURS,
    ),
    "checks": Topic(
        (OURS, IN_TURN, CHECKED, BETWEEN, WATCHED, PROVED),
        (
            *(Ratio(way, OURS, step=1.01) for way in (IN_TURN, BETWEEN)),
            *(Ratio(way, OURS, step=1.05) for way in (CHECKED, WATCHED)),
            Ratio(PROVED, OURS, step=1.30),
        ),
        (8192,),
    ),
}
SAME_LOSS, SAME_GRADIENTS = Target(0.0), Target(1e-3)
"""The loss bit for bit; attention adds up its gradients in no fixed order on a GPU."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1 where a target is missed, 2 where it could not run."""
    parser = gpu_parser("gpu_steps", __doc__)
    parser.add_argument("topic", choices=TOPICS)
    options = parser.parse_args(arguments)
    if (device := wanted_device("gpu_steps", toy=options.toy)) is None:
        return 2
    topic = TOPICS[options.topic]
    lengths = TOY_LENGTHS if options.toy else topic.tokens
    program = f"gpu_steps {options.topic}"
    made = partial(figures, topic, lengths)
    progress = Progress(program, options.out, made, device)
    for length in lengths:
        for way in topic.ways:
            if way == THEIRS and not library_offloads():
                progress.note(NO_THEIRS)
                continue
            progress.measure(f"{length} tokens, {way}", partial(measured, way, length, device, toy=options.toy))
    return finish(progress.figures, progress.text(), options.out)


def library_offloads() -> bool:
    """Tell whether the installed transformers offloads by itself."""
    from transformers import PreTrainedModel

    return "offload" in signature(own_switch(PreTrainedModel, "enable")).parameters


def measured(way: str, tokens: int, device: Device, *, toy: bool) -> Steps:
    """Time steps in one way, without the first, which check more; under a guard, say also what that saw."""
    import torch

    model = llama(TOY_LAYERS if toy else LAYERS, TOY if toy else LARGE, device.kind)
    ids = torch.randint(VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(0)).to(device.kind)
    warm_up, steps = (3, 1) if toy else (5, 5)
    with WAYS[way](model) as watching:
        taken = timed_steps(model, ids, device, warm_up=warm_up, steps=steps)
        if watching is None:
            return taken
        report = watching.report()
        expected = min(len(report.blocks), warm_up + steps) if way == PROVED else 0
        return replace(taken, right=not report.faults and report.proved >= expected)


def llama(layers: int, sizes: Mapping[str, int], device: str = "cpu") -> nn.Module:
    """Make a base model in training, with random weights; always the same on one device."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    limits = {"vocab_size": VOCABULARY, "max_position_embeddings": LONG}
    config = LlamaConfig(**sizes, **limits, num_hidden_layers=layers, use_cache=False)
    config._attn_implementation = "sdpa"
    with torch.device(device):
        model: nn.Module = LlamaModel(config)
    return model.to(torch.bfloat16).train()


def timed_steps(model: nn.Module, ids: Tensor, device: Device, *, warm_up: int, steps: int) -> Steps:
    """Run and time steps of forward and backward. The peak is that of the timed ones."""
    import torch

    def step() -> tuple[float, Tensor]:
        model.zero_grad(set_to_none=True)
        device.synchronize()
        start = perf_counter()
        loss = model(input_ids=ids).last_hidden_state[:, -CHUNK:].float().square().mean()  # no logits in memory
        torch.autograd.backward(loss)
        device.synchronize()
        return perf_counter() - start, loss.detach()

    for _ in range(warm_up):  # kernels are chosen and loaded, memory is taken and pinned
        step()
    device.reset_peak()
    seconds, losses = zip(*(step() for _ in range(steps)), strict=True)
    peak = device.peak()
    squares = [value.grad.float().square().sum() for value in model.parameters() if value.grad is not None]
    return Steps(seconds, peak, float(losses[-1]), float(torch.stack(squares).sum().sqrt()))


def figures(topic: Topic, lengths: Iterable[int], kept: Kept) -> list[Figure]:
    """Return seconds and peak of each way, and the ratios. What did not fit has none, and the first way has to."""
    made: list[Figure] = []
    for length in lengths:
        where = f"{length // 1024}K" if length >= 1024 else f"{length} tokens"
        found: dict[str, Steps | None] = {
            way: kept[name] for way in topic.ways if (name := f"{length} tokens, {way}") in kept
        }
        steps = {way: taken for way, taken in found.items() if taken}
        for way, each in steps.items():
            made.append(Figure(f"{where}: a step, {way}", each.seconds, "s"))
            made.append(Figure(f"{where}: peak, {way}", (each.peak / GIGABYTE,), "GB"))
            if each.right is not None:
                right = Target(1.0, at_least=True)
                made.append(Figure(f"{where}: no false alarm, {way}", (float(each.right),), "", right))
        if topic.ways[0] in found and topic.ways[0] not in steps:
            made.append(Figure(f"{where}: {topic.ways[0]} fits", (0.0,), "", Target(1.0, at_least=True)))
        for ratio in topic.ratios:
            if ratio.over in steps and ratio.under in steps:
                made += _ratios(
                    where, ratio, steps[ratio.over], steps[ratio.under], timed=length >= LONG or not ratio.long
                )
        for way in (way for way in steps if topic.same in steps and way != topic.same):
            one, other = steps[way], steps[topic.same]
            for what, apart, whole, target in (
                ("loss", one.loss - other.loss, other.loss, SAME_LOSS),
                ("gradient norm", one.norm - other.norm, other.norm, SAME_GRADIENTS),
            ):
                made.append(Figure(f"{where}: {what}, {way} / {topic.same} - 1", (abs(apart) / whole,), "x", target))
    return made


def _ratios(where: str, ratio: Ratio, over: Steps, under: Steps, *, timed: bool) -> Iterator[Figure]:
    pair = f"{ratio.over} / {ratio.under}"
    step, peak = (None if limit is None else Target(limit) for limit in (ratio.step, ratio.peak))
    yield Figure(
        f"{where}: a step, {pair}", (median(over.seconds) / median(under.seconds),), "x", step if timed else None
    )
    yield Figure(f"{where}: peak, {pair}", (over.peak / under.peak,), "x", peak)


if __name__ == "__main__":
    sys.exit(main())
