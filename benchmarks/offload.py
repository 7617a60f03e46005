"""What does `wrap_blocks(model, offload="cpu")` take off the device, and at what cost? On a Llama-like model.

On any machine: the bytes that leave, against layers x sequence x hidden x itemsize, and the gradients, against those
without offload. The last block's input stays, so at best (L - 1) / L of L layers leave: 24 layers or more can reach
95%. Also the time of a step that writes its inputs to files (`offload="disk"`), against one without offload and one
with host memory; the narrow model makes this a hard case, for it computes little for each byte. On a CUDA GPU also
the peak memory and the time of a step in bfloat16, of a model of 1.1 billion parameters, without offload, with
transformers' own and with ours. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device import Device, device_of
from benchmarks.figures import Figure, Target, document, finish, lacking, machine, option_parser, plain_table

if TYPE_CHECKING:
    from torch import Tensor, nn

GIGABYTE = 10**9
"""The unit of memory here."""
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4}
"""With 24 layers and a vocabulary of 32,000 it has 1.1 billion parameters."""
TOY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LAYERS, VOCABULARY = 24, 32_000
SHORT = 512
"""The tokens of the part that runs everywhere."""
SEQUENCES = 16
"""So many of them in a step that is timed with files: the inputs of 24 layers are 201 MB then."""
TOKENS = (8 * 1024, 32 * 1024, 128 * 1024)
TOY_TOKENS = (128, 256)
LONG = 32 * 1024
"""From this many tokens on, time has a target; beyond it, few steps are timed: one takes most of a minute."""
_FEW_STEPS = 2
CHUNK = 1024
"""The loss is that of the last positions only: all positions still reach it through the attention."""
ENOUGH, ALL, FEW, NEAR = Target(0.95, at_least=True), Target(1.0, at_least=True), Target(0.1), Target(1.1)
NONE, THEIRS, OURS, FILES = "no offload", "transformers", "wrap_blocks", "files"
_PLACES = {OURS: "cpu", FILES: "disk"}
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """Steps of one model: the seconds of each, the peak in bytes, the loss and the norm of all gradients."""

    seconds: tuple[float, ...]
    peak: int
    loss: float
    norm: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("offload", "torch", "transformers"):
        return 2
    device = device_of(toy=options.toy)
    sizes, tokens = (TOY, TOY_TOKENS) if options.toy else (LARGE, TOKENS)
    _say(f"{options.layers} layers, {SHORT} tokens, on the CPU")
    measured = off_device(options.layers)
    _say(f"{options.layers} layers, {SEQUENCES} x {SHORT} tokens, with files")
    measured += in_files(options.layers, options.steps)
    if device:
        for length in options.tokens or tokens:
            ways = {name: cost(name, length, options.steps, sizes, device) for name in (NONE, THEIRS, OURS)}
            measured += costs(length, ways, sizes["hidden_size"])
    shown: list[RenderableType] = [
        plain_table(f"activation offload: {device.name if device else machine()}", measured)
    ]
    if device is None:
        shown.append("Peak memory and step time were not measured: torch sees no CUDA device here.")
    small = {**SMALL, "layers": options.layers, "tokens": SHORT}
    name = device.name if device else ""
    text = document(measured, device=name, small=small, large={**sizes, "layers": LAYERS})
    return finish("offload", measured, text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("offload", __doc__)
    parser.add_argument(
        "--layers", type=int, default=LAYERS, metavar="N", help=f"of the part on the CPU (default: {LAYERS})"
    )
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="timed steps of each way; the median counts (default: 5)"
    )
    parser.add_argument("--tokens", type=int, nargs="+", metavar="N", help="sequence lengths on the GPU")
    parser.add_argument("--toy", action="store_true", help="toy sizes, and the processor in place of a GPU")
    return parser.parse_args(arguments)


def off_device(layers: int) -> list[Figure]:
    """Bytes and gradients of one step on the CPU, in float32: with offload, and checkpointed without."""
    import torch

    torch.set_num_threads(1)  # with several, products may be summed up in another order from run to run
    model = llama(layers, SMALL)
    ids = token_ids(SHORT, "cpu")
    with enabled(NONE, model):
        expected = gradients(model, ids)
    with enabled(OURS, model) as surgery:
        moved = gradients(model, ids)
        stats = surgery.stats
    whole = layers * SHORT * SMALL["hidden_size"] * 4
    same = sum(name in moved and torch.equal(moved[name], gradient) for name, gradient in expected.items())
    return [
        Figure("CPU: layers x sequence x hidden x itemsize", (whole / GIGABYTE,), "GB"),
        Figure("CPU: bytes off the device", (stats.bytes / GIGABYTE,), "GB"),
        Figure("CPU: off the device / all", (stats.bytes / whole,), "x", ENOUGH),
        Figure("CPU: tensors moved", (float(stats.tensors),), ""),
        Figure("CPU: tensors kept", (float(stats.kept),), ""),
        Figure("CPU: fetched ahead of their use / fetched", (stats.prefetched / max(stats.fetched, 1),), "x"),
        Figure("CPU: gradients that are those without offload, to the bit", (same / len(expected),), "x", ALL),
    ]


def in_files(layers: int, rounds: int) -> list[Figure]:
    """A step on the CPU, in float32 on one thread, whose inputs stay, go to host memory, or to files.

    Each round has one step of each, and each ratio is one of a round: what slows the machine slows all three. What
    files cost shows in processor seconds, those of the thread that copies among them, and in copies waited for.
    """
    import torch

    torch.set_num_threads(1)
    model, ids = llama(layers, SMALL), token_ids(SHORT, "cpu", SEQUENCES)
    models = {name: copy.deepcopy(model) for name in (NONE, OURS, FILES)}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    processor: dict[str, list[float]] = {name: [] for name in models}
    with ExitStack() as ways:
        surgeries = {name: ways.enter_context(enabled(name, each)) for name, each in models.items()}
        for timed in (False, *[True] * rounds):
            for name, each in models.items():
                start, used = perf_counter(), process_time()
                gradients(each, ids)
                if timed:
                    seconds[name].append(perf_counter() - start)
                    processor[name].append(process_time() - used)
        moved, copies = surgeries[FILES].stats, surgeries[FILES].offloader.transport.thread.stats
    places = {NONE: NONE, OURS: "host memory", FILES: "files"}
    return [
        *(Figure(f"files: a step, {places[name]}", tuple(each), "s") for name, each in seconds.items()),
        *(Figure(f"files: processor seconds, {places[name]}", tuple(each), "s") for name, each in processor.items()),
        Figure("files: written in a step", (moved.bytes / (rounds + 1) / GIGABYTE,), "GB"),
        Figure("files: copies that a step waited for / all", (copies.waited / max(copies.copies, 1),), "x", FEW),
        Figure("files: a step, files / no offload", _ratios(seconds[FILES], seconds[NONE]), "x"),
        Figure("files: a step, files / host memory", _ratios(seconds[FILES], seconds[OURS]), "x"),
        Figure("files: processor seconds, files / no offload", _ratios(processor[FILES], processor[NONE]), "x", NEAR),
        Figure("files: processor seconds, files / host memory", _ratios(processor[FILES], processor[OURS]), "x"),
    ]


def _ratios(over: Sequence[float], under: Sequence[float]) -> tuple[float, ...]:
    return tuple(one / other for one, other in zip(over, under, strict=True))


def llama(layers: int, sizes: Mapping[str, int], device: str = "cpu", dtype: Any = None) -> nn.Module:
    """A base model, in training, with random weights; always the same on one device."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        **sizes, num_hidden_layers=layers, vocab_size=VOCABULARY, max_position_embeddings=max(TOKENS), use_cache=False
    )
    config._attn_implementation = "sdpa"
    with torch.device(device):
        model: nn.Module = LlamaModel(config)
    return model.to(dtype or torch.float32).train()


def token_ids(tokens: int, device: str, sequences: int = 1) -> Tensor:
    """Sequences of random tokens."""
    import torch

    return torch.randint(VOCABULARY, (sequences, tokens), generator=torch.Generator().manual_seed(0)).to(device)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """The mean square of the last hidden states: no logits of long sequences in memory."""
    hidden: Tensor = model(input_ids=ids).last_hidden_state[:, -CHUNK:]
    return hidden.float().square().mean()


def gradients(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Those of one step, by the names of the parameters."""
    import torch

    model.zero_grad(set_to_none=True)
    torch.autograd.backward(loss_of(model, ids))
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


@contextmanager
def enabled(name: str, model: Any) -> Iterator[Any]:
    """Checkpointing of every block in one of the ways; gives the surgery where there is one.

    transformers' own offload pins memory, which takes an accelerator: on the processor it only checkpoints.
    """
    from ckpt_surgery import wrap_blocks

    if name == THEIRS:
        model.activation_checkpointing_enable({"use_reentrant": False}, offload=model.device.type != "cpu")
        yield None
        model.activation_checkpointing_disable()
        return
    # what is measured is offload; its gradients are compared below
    with wrap_blocks(model, offload=_PLACES.get(name), self_check="never") as surgery:
        yield surgery


def cost(name: str, tokens: int, steps: int, sizes: Mapping[str, int], device: Device) -> Cost | None:
    """Steps of the large model on a device; None where its memory does not suffice."""
    import torch

    _say(f"{tokens} tokens, {name}")
    gc.collect()
    device.empty_cache()
    try:
        model = llama(LAYERS, sizes, device.kind, torch.bfloat16)
        with enabled(name, model):
            return _steps(model, token_ids(tokens, device.kind), steps if tokens <= LONG else _FEW_STEPS, device)
    except torch.OutOfMemoryError:
        _say("the memory of the device does not suffice")
        return None


def _steps(model: nn.Module, ids: Tensor, steps: int, device: Device) -> Cost:
    import torch

    def step() -> tuple[float, float]:
        device.synchronize()
        start = perf_counter()
        model.zero_grad(set_to_none=True)
        loss = loss_of(model, ids)
        torch.autograd.backward(loss)
        device.synchronize()
        return perf_counter() - start, float(loss.detach())

    for _ in range(_WARM_UP if steps > _FEW_STEPS else 1):
        step()
    device.reset_peak()
    taken = [step() for _ in range(steps)]
    peak = device.peak()
    squares = [value.grad.float().square().sum() for value in model.parameters() if value.grad is not None]
    norm = float(torch.stack(squares).sum().sqrt())
    return Cost(tuple(seconds for seconds, _ in taken), peak, taken[-1][1], norm)


def costs(tokens: int, by_name: Mapping[str, Cost | None], hidden_size: int = LARGE["hidden_size"]) -> list[Figure]:
    """Seconds and peak of each way, and the ratios that have a target. What did not fit has no figures."""
    where, measured = f"{tokens // 1024}K", []
    for name, each in by_name.items():
        if each is not None:
            measured += [
                Figure(f"{where}: a step, {name}", each.seconds, "s"),
                Figure(f"{where}: peak, {name}", (each.peak / GIGABYTE,), "GB"),
            ]
    none, theirs, ours = (by_name[name] for name in (NONE, THEIRS, OURS))
    if ours is None:
        return [*measured, Figure(f"{where}: {OURS} fits", (0.0,), "", Target(1.0, at_least=True))]
    if theirs is not None:
        block_input = tokens * hidden_size * 2
        measured += [
            _ratio(f"{where}: peak, {OURS} / {THEIRS}", ours.peak, theirs.peak, Target(1.0)),
            Figure(f"{where}: peak, {OURS} - {THEIRS}", ((ours.peak - theirs.peak) / block_input,), "block inputs"),
            _ratio(f"{where}: a step, {OURS} / {THEIRS}", _median(ours), _median(theirs)),
        ]
    if none is not None:
        limit = Target(1.03) if tokens >= LONG else None
        measured += [
            _ratio(f"{where}: peak, {OURS} / {NONE}", ours.peak, none.peak),
            _ratio(f"{where}: a step, {OURS} / {NONE}", _median(ours), _median(none), limit),
            _ratio(f"{where}: loss, {OURS} / {NONE} - 1", abs(ours.loss - none.loss), none.loss, Target(0.0)),
            # Attention adds up its gradients in no fixed order there: two runs of one model differ as well.
            _ratio(
                f"{where}: gradient norm, {OURS} / {NONE} - 1", abs(ours.norm - none.norm), none.norm, Target(1e-3)
            ),
        ]
    return measured


def _ratio(name: str, over: float, under: float, target: Target | None = None) -> Figure:
    return Figure(name, (over / under,), "x", target)


def _median(each: Cost) -> float:
    return statistics.median(each.seconds)


def _say(text: str) -> None:
    print(f"offload: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
