"""What is the longest sequence at which a model of 8 billion parameters trains on this GPU, and how long is a step?

Random weights in bfloat16; one sequence; forward, backward and optimizer. With low-rank adapters and AdamW: with the
checkpointing of transformers and after `long_context`, tiles on the GPU or the host; all weights with 8-bit AdamW (of
bitsandbytes, where that is installed): after `long_context`, likewise. Lengths are doubled until one does not fit, and
then halved between. After `long_context` blocks are cut at their attention, and their inputs are in host memory: a
length fits if it does with 2 of the 32 layers, all weights, gradients and optimizer states being on the GPU. Those
steps come first, and are the shorter ones. A step of all layers is timed at the longest length that takes about a
minute at most. Prints a table; writes json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from benchmarks.device import GIGABYTE, Device, own_switch, wanted_device
from benchmarks.figures import Figure, Target, finish, gpu_parser, lacking, plain_table
from benchmarks.progress import Kept, Progress, lacks_room
from ckpt_surgery.text import size

if TYPE_CHECKING:
    from torch import nn

LONGEST_STEP = 60.0
"""The seconds that a step may take: none is started that is expected to take longer."""
HOST_SHARE = 0.8
"""The share of the host's free memory that block inputs may take."""
LORA_RANK = 16
PACKAGE = "bitsandbytes"


@dataclass(frozen=True, slots=True)
class Size:
    """A model, the `first` length to try, the `step` between lengths, and the layers to try them with."""

    config: Mapping[str, Any]
    first: int
    step: int
    tried_layers: int
    most: int | None = None

    @property
    def layers(self) -> int:
        """All layers of the model."""
        return int(self.config["num_hidden_layers"])

    @property
    def bytes_per_token(self) -> int:
        """What the inputs of all blocks take of the host's memory for each token."""
        return self.layers * int(self.config["hidden_size"]) * 2


_8B = {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}
_TINY = {"num_hidden_layers": 3, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
LARGE = Size({**_8B, "num_attention_heads": 32, "num_key_value_heads": 8}, 16 * 1024, 8 * 1024, tried_layers=2)
TOY = Size({**_TINY, "num_attention_heads": 2, "num_key_value_heads": 1}, 64, 64, tried_layers=2, most=128)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train a model: with adapters or whole, after `long_context` or checkpointed by transformers.

    With `host` the tiles of blocks that are cut are on the host.
    """

    lora: bool
    ours: bool
    host: bool = False

    def __str__(self) -> str:
        trained = "LoRA" if self.lora else "all weights, 8-bit AdamW"
        ours = "long_context(host=True)" if self.host else "long_context"
        return f"{trained}, {ours if self.ours else 'transformers'}"


LORA_THEIRS, LORA_OURS, WHOLE_OURS = Way(True, False), Way(True, True), Way(False, True)
LORA_HOST, WHOLE_HOST = Way(True, True, host=True), Way(False, True, host=True)
WAYS = (LORA_OURS, WHOLE_HOST, LORA_THEIRS, LORA_HOST, WHOLE_OURS)
LONGER = Target(1.0, at_least=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = gpu_parser("longest", __doc__).parse_args(arguments)
    if lacking("longest", "torch", "transformers"):
        return 2
    if (device := wanted_device("longest", toy=options.toy)) is None:
        return 2
    sizes = TOY if options.toy else LARGE
    progress = Progress(
        "longest", options.out, lambda kept: figures(kept, sizes), device, resume=options.resume, sizes=sizes.config
    )
    for way in WAYS:
        if not way.lora and find_spec(PACKAGE) is None:
            progress.note(f"{way}: not measured, because {PACKAGE} is not installed")
            continue
        search(Trial(way, sizes, device), progress)
    shown: list[RenderableType] = [plain_table(f"the longest sequence: {device.name}", progress.figures)]
    shown += progress.notes
    return finish("longest", progress.figures, progress.text, options.out, shown)


class Trial:
    """Steps of one model trained in one way, built at the first step."""

    def __init__(self, way: Way, sizes: Size, device: Device) -> None:
        self.way = way
        self.sizes = sizes
        self._device = device
        self._trained: tuple[nn.Module, Any] | None = None

    @property
    def layers(self) -> int:
        """With how many layers lengths are tried."""
        return self.sizes.tried_layers if self.way.ours else self.sizes.layers

    def step(self, tokens: int, layers: int, times: int = 1) -> dict[str, Any]:
        """Run so many steps: the seconds of the last and the peak, or that it does not fit."""
        try:
            model, optimizer = self._trained = self._trained or trained(self.way, self.sizes, self._device)
            self._device.reset_peak()
            seconds = 0.0
            for _ in range(times):
                seconds = _step(model, optimizer, tokens, layers, self._device)
        except Exception as error:
            if not lacks_room(error):
                raise
            return {"fits": False}
        return {"fits": True, "seconds": seconds, "peak": self._device.peak()}


def trained(way: Way, sizes: Size, device: Device) -> tuple[nn.Module, Any]:
    """Return the model on the device, with all its gradients and optimizer states there, and the optimizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ckpt_surgery import long_context
    from ckpt_surgery.planning.lora import add_lora

    torch.manual_seed(0)
    place = torch.device(device.kind)
    config = LlamaConfig(
        **sizes.config, max_position_embeddings=2**21, attn_implementation="sdpa", use_cache=False, pad_token_id=None
    )
    with place:
        model: Any = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).train()
    if way.lora:
        add_lora(model, LORA_RANK, place)
    if way.ours:
        long_context(model, host=way.host or None)
    else:
        own_switch(model, "enable")({"use_reentrant": False})
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in weights:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = _optimizer(way, weights)
    optimizer.step()
    return model, optimizer


def _optimizer(way: Way, weights: list[Any]) -> Any:
    import torch

    if way.lora:
        return torch.optim.AdamW(weights, lr=1e-6)
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(weights, lr=1e-6)


def _step(model: Any, optimizer: Any, tokens: int, layers: int, device: Device) -> float:
    import torch

    config = model.config
    whole = config.num_hidden_layers
    ids = torch.randint(config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0)).to(device.kind)
    device.synchronize()
    start = perf_counter()
    config.num_hidden_layers = layers  # the model runs its first layers, and holds all
    try:
        torch.autograd.backward(model(input_ids=ids, labels=ids).loss)
        optimizer.step()
        device.synchronize()
        return perf_counter() - start
    finally:
        config.num_hidden_layers = whole
        optimizer.zero_grad(set_to_none=False)


def search(trial: Trial, progress: Progress) -> None:
    """Try lengths, and time a step of all layers."""
    sizes, way = trial.sizes, trial.way
    most, bound = most_tokens(sizes) if way.ours else (sizes.most, "no more was asked for")

    def tried(tokens: int) -> Mapping[str, Any] | None:
        return progress.measure(trial_name(way, tokens, trial.layers), lambda: trial.step(tokens, trial.layers))  # type: ignore[no-any-return]

    found = longest(tried, sizes.first, sizes.step, most)
    if found is None:
        return  # a step failed, and the json says how
    fits, fails, seconds = found
    if not fits:
        progress.note(f"{way}: a sequence of {sizes.first:,} tokens does not fit")
        return
    if not fails:
        why = f"a step of {2 * fits:,} tokens would take more than {LONGEST_STEP:g} s"
        progress.note(f"{way}: longer ones were not tried: {bound if most and 2 * fits > most else why}")
    if trial.layers < sizes.layers:
        tokens = fits
        while seconds * sizes.layers / trial.layers > LONGEST_STEP and tokens // 2 >= sizes.first:
            tokens, seconds = tokens // 2, seconds / 2
        progress.measure(trial_name(way, tokens, sizes.layers), lambda: trial.step(tokens, sizes.layers, times=2))


def longest(
    tried: Callable[[int], Mapping[str, Any] | None], first: int, step: int, most: int | None
) -> tuple[int, int, float] | None:
    """Find the longest length that fits, the shortest that does not (0: none), and the seconds of the longest.

    None where a step failed for another reason.

    Lengths are doubled from `first`, then halved between, to one part in eight or to `step`. None beyond `most` is
    tried, and none that is expected to take too long: the time of attention grows with the square of the length.
    """
    fits, fails, seconds, tokens = 0, 0, 0.0, first
    while tokens:
        result = tried(tokens)
        if result is None:
            return None
        if result["fits"]:
            fits, seconds = tokens, result["seconds"]
        else:
            fails = tokens
        if fails and (not fits or fails - fits <= max(step, fits // 8)):
            break
        tokens = (fits + fails) // 2 // step * step if fails else 2 * fits
        too_long = seconds * (tokens / fits) ** 2 > LONGEST_STEP
        if too_long or tokens <= fits or (most and tokens > most):
            break
    return fits, fails, seconds


def most_tokens(sizes: Size) -> tuple[int | None, str]:
    """Return the most tokens whose block inputs the host can hold, or the size's own bound, and that in words."""
    from ckpt_surgery.runtime.offload.host_memory import host_memory

    if sizes.most:
        return sizes.most, "this is a dry run"
    memory = host_memory()
    if memory is None:
        return None, ""
    free = int(memory.free * HOST_SHARE)
    return free // sizes.bytes_per_token, f"the host has {size(memory.free)} for the inputs of all blocks"


def trial_name(way: Way, tokens: int, layers: int) -> str:
    """Return the name of a measurement."""
    return f"{way}, {tokens} tokens, {layers} layers"


def figures(kept: Kept, sizes: Size) -> list[Figure]:
    """Return the longest length of each way, the shortest that does not fit, and the step of all layers."""
    measured: list[Figure] = []
    best: dict[Way, int] = {}
    for way in WAYS:
        layers = sizes.tried_layers if way.ours else sizes.layers
        trials = dict(_trials(kept, way, layers))
        fitting = [tokens for tokens, result in trials.items() if result["fits"]]
        failing = [tokens for tokens, result in trials.items() if not result["fits"]]
        if fitting:
            best[way] = max(fitting)
            measured.append(Figure(f"{way}: longest that fits", (best[way],), "tokens"))
        if failing:
            measured.append(Figure(f"{way}: shortest that does not", (min(failing),), "tokens"))
        whole = {tokens: result for tokens, result in _trials(kept, way, sizes.layers) if result["fits"]}
        if whole:
            tokens = max(whole)
            measured.append(Figure(f"{way}: a step of {tokens} tokens", (whole[tokens]["seconds"],), "s"))
            measured.append(Figure(f"{way}: peak of it", (whole[tokens]["peak"] / GIGABYTE,), "GB"))
    if LORA_OURS in best and LORA_THEIRS in best:
        longer = best[LORA_OURS] / best[LORA_THEIRS]
        measured.append(Figure("LoRA: longest, long_context / transformers", (longer,), "x", LONGER))
    return measured


def _trials(kept: Kept, way: Way, layers: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return the lengths that were tried in one way with so many layers, and what came of them."""
    before, after = f"{way}, ", f" tokens, {layers} layers"
    for name, result in kept.items():
        if name.startswith(before) and name.endswith(after):
            yield int(name.removeprefix(before).removesuffix(after)), result or {"fits": False}


if __name__ == "__main__":
    sys.exit(main())
