"""What does `wrap_blocks(model, offload="cpu")` take off the device, and at what cost? On a Llama-like model.

On any machine: the bytes that leave, against layers x sequence x hidden x itemsize, and the gradients, against those
without offload. The last block's input stays, so at best (L - 1) / L of L layers leave: 24 layers or more can reach
95%. On a CUDA GPU also the peak memory and the time of a checkpointed step in bfloat16, of a model of 1.1 billion
parameters (half its layers at 128K tokens): without offload, with transformers' own, inside torch's `save_on_cpu` with
pinned memory, and with ours. Prints a table of figures and targets; writes json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.device import PROCESSOR, Device, device_of
from benchmarks.device_steps import GIGABYTE, Steps, own_switch, ratio, seconds_and_peak, timed_steps
from benchmarks.figures import Figure, Target, finish, gpu_parser, lacking, machine, plain_table
from benchmarks.progress import Kept, Progress

if TYPE_CHECKING:
    from torch import Tensor, nn

SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4}
"""With 24 layers and a vocabulary of 32,000 it has 1.1 billion parameters."""
TOY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LAYERS, VOCABULARY = 24, 32_000
FEW_LAYERS, TOY_LAYERS = 12, 3
FEW = f"beyond 32K tokens the model has {FEW_LAYERS} of its {LAYERS} layers, because a step takes long"
NO_THEIRS = "transformers' own offload is not measured: the installed release has none"
SHORT = 512
"""The tokens of the part that runs everywhere."""
TOKENS = (8 * 1024, 32 * 1024, 128 * 1024)
TOY_TOKENS = (128, 256)
LONG = 32 * 1024
"""From this many tokens on, time has a target; beyond it, layers and timed steps are fewer: a step takes long."""
_FEW_STEPS = 2
CHUNK = 1024
"""The loss is that of the last positions only: all positions still reach it through the attention."""
ENOUGH, ALL = Target(0.95, at_least=True), Target(1.0, at_least=True)
NONE, THEIRS, SAVE_ON_CPU, OURS = "no offload", "transformers", "save_on_cpu", "wrap_blocks"
WAYS = (NONE, THEIRS, SAVE_ON_CPU, OURS)
_WARM_UP = 2
_ON_CPU = "bytes and gradients on the CPU"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("offload", "torch", "transformers"):
        return 2
    device = device_of(toy=options.toy)
    lengths = (options.tokens or (TOY_TOKENS if options.toy else TOKENS)) if device else ()
    small = {**SMALL, "layers": options.layers, "tokens": SHORT}
    progress = Progress(
        "offload",
        options.out,
        lambda kept: figures(kept, lengths, toy=options.toy),
        device or Device("cpu", ""),
        resume=options.resume,
        small=small,
        large=TOY if options.toy else LARGE,
    )
    if not options.gpu_only:
        progress.measure(_ON_CPU, lambda: off_device(options.layers))
    ways = WAYS if theirs_is_there() else tuple(way for way in WAYS if way != THEIRS)
    if lengths and THEIRS not in ways:
        progress.note(NO_THEIRS)
    for length in lengths:
        for way in ways:
            progress.measure(f"{length} tokens, {way}", measurement(way, length, options, device or PROCESSOR))
    if not options.toy and any(length > LONG for length in lengths):
        progress.note(FEW)
    where = device.name if device else machine()
    shown: list[RenderableType] = [plain_table(f"activation offload: {where}", progress.figures)]
    if device is None:
        shown.append("Peak memory and step time were not measured: torch sees no CUDA device here.")
    return finish("offload", progress.figures, progress.text, options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = gpu_parser("offload", __doc__)
    parser.add_argument(
        "--layers", type=int, default=LAYERS, metavar="N", help=f"of the part on the CPU (default: {LAYERS})"
    )
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="timed steps; the median counts (default: 5)"
    )
    parser.add_argument("--tokens", type=int, nargs="+", metavar="N", help="sequence lengths on the GPU")
    parser.add_argument("--gpu-only", action="store_true", help="leave out what is counted on the CPU")
    return parser.parse_args(arguments)


def figures(kept: Kept, lengths: Sequence[int], *, toy: bool = False) -> list[Figure]:
    """All that is made of the measurements so far."""
    measured = on_cpu(kept[_ON_CPU], toy=toy) if kept.get(_ON_CPU) else []
    for length in lengths:
        names = {way: f"{length} tokens, {way}" for way in WAYS}
        steps = {
            way: None if kept[name] is None else Steps.of(kept[name]) for way, name in names.items() if name in kept
        }
        measured += costs(length, steps, TOY["hidden_size"] if toy else LARGE["hidden_size"])
    return measured


def off_device(layers: int) -> dict[str, float]:
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
    same = sum(name in moved and torch.equal(moved[name], gradient) for name, gradient in expected.items())
    return {
        "whole": layers * SHORT * SMALL["hidden_size"] * 4,
        "bytes": stats.bytes,
        "tensors": stats.tensors,
        "kept": stats.kept,
        "ahead": stats.prefetched / max(stats.fetched, 1),
        "same": same / len(expected),
    }


def on_cpu(counted: Mapping[str, float], *, toy: bool = False) -> list[Figure]:
    """The figures of `off_device`. Few layers, as in a dry run, cannot reach the share."""
    return [
        Figure("CPU: layers x sequence x hidden x itemsize", (counted["whole"] / GIGABYTE,), "GB"),
        Figure("CPU: bytes off the device", (counted["bytes"] / GIGABYTE,), "GB"),
        Figure("CPU: off the device / all", (counted["bytes"] / counted["whole"],), "x", None if toy else ENOUGH),
        Figure("CPU: tensors moved", (float(counted["tensors"]),), ""),
        Figure("CPU: tensors kept", (float(counted["kept"]),), ""),
        Figure("CPU: fetched ahead of their use / fetched", (counted["ahead"],), "x"),
        Figure("CPU: gradients that are those without offload, to the bit", (counted["same"],), "x", ALL),
    ]


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


def theirs_is_there() -> bool:
    """Whether the installed transformers offloads by itself."""
    from transformers import PreTrainedModel

    return "offload" in signature(own_switch(PreTrainedModel, "enable")).parameters


@contextmanager
def enabled(name: str, model: Any) -> Iterator[Any]:
    """Checkpointing of every block in one of these ways; gives the surgery where there is one.

    transformers' own offload, and torch's `save_on_cpu`, pin memory, which takes an accelerator: on the processor
    they only checkpoint.
    """
    from ckpt_surgery import wrap_blocks

    if name in (THEIRS, SAVE_ON_CPU):
        on_device = model.device.type != "cpu"
        offload = {"offload": True} if name == THEIRS and on_device else {}
        own_switch(model, "enable")({"use_reentrant": False}, **offload)
        with _saved_on_cpu(model) if name == SAVE_ON_CPU and on_device else nullcontext():
            yield None
        own_switch(model, "disable")()
        return
    # what is measured is offload; its gradients are compared below
    with wrap_blocks(model, offload="cpu" if name == OURS else None, self_check="never") as surgery:
        yield surgery


@contextmanager
def _saved_on_cpu(model: Any) -> Iterator[None]:
    """Inside, the whole forward runs in torch's `save_on_cpu`: the inputs of checkpoints are what it saves."""
    from torch.autograd.graph import save_on_cpu

    forward = model.forward

    def saving(*args: Any, **kwargs: Any) -> Any:
        with save_on_cpu(pin_memory=True, device_type=model.device.type):
            return forward(*args, **kwargs)

    model.forward = saving
    try:
        yield
    finally:
        del model.forward


def measurement(way: str, tokens: int, options: argparse.Namespace, device: Device) -> Callable[[], dict[str, Any]]:
    """A function that measures steps of the large model on a device."""

    def measured() -> dict[str, Any]:
        import torch

        layers = TOY_LAYERS if options.toy else LAYERS if tokens <= LONG else FEW_LAYERS
        model = llama(layers, TOY if options.toy else LARGE, device.kind, torch.bfloat16)
        ids = token_ids(tokens, device.kind)
        long = tokens > LONG
        with enabled(way, model):
            return timed_steps(
                model,
                lambda: loss_of(model, ids),
                device,
                warm_up=1 if long or options.toy else _WARM_UP,
                steps=min(options.steps, _FEW_STEPS) if long else options.steps,
            ).to_dict()

    return measured


def costs(tokens: int, by_name: Mapping[str, Steps | None], hidden_size: int = LARGE["hidden_size"]) -> list[Figure]:
    """Seconds and peak of each way, and the ratios that have a target. What did not fit has no figures."""
    where = f"{tokens // 1024}K" if tokens >= 1024 else f"{tokens} tokens"
    measured = [f for name, each in by_name.items() if each for f in seconds_and_peak(where, name, each)]
    none, theirs, saving, ours = (by_name.get(name) for name in WAYS)
    if ours is None:
        fits = Figure(f"{where}: {OURS} fits", (0.0,), "", Target(1.0, at_least=True))
        return [*measured, fits] if OURS in by_name else measured
    if theirs is not None:
        block_input = tokens * hidden_size * 2
        measured += [
            ratio(f"{where}: peak, {OURS} / {THEIRS}", ours.peak, theirs.peak, Target(1.0)),
            Figure(f"{where}: peak, {OURS} - {THEIRS}", ((ours.peak - theirs.peak) / block_input,), "block inputs"),
            ratio(f"{where}: a step, {OURS} / {THEIRS}", ours.median, theirs.median),
        ]
    if saving is not None:
        measured += [
            ratio(f"{where}: peak, {OURS} / {SAVE_ON_CPU}", ours.peak, saving.peak),
            ratio(f"{where}: a step, {OURS} / {SAVE_ON_CPU}", ours.median, saving.median),
        ]
    if none is not None:
        limit = Target(1.03) if tokens >= LONG else None
        measured += [
            ratio(f"{where}: peak, {OURS} / {NONE}", ours.peak, none.peak),
            ratio(f"{where}: a step, {OURS} / {NONE}", ours.median, none.median, limit),
            ratio(f"{where}: loss, {OURS} / {NONE} - 1", abs(ours.loss - none.loss), none.loss, Target(0.0)),
            # Attention adds up its gradients in no fixed order there: two runs of one model differ as well.
            ratio(f"{where}: gradient norm, {OURS} / {NONE} - 1", abs(ours.norm - none.norm), none.norm, Target(1e-3)),
        ]
    return measured


if __name__ == "__main__":
    sys.exit(main())
