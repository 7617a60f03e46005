"""Real ranks on one machine that train wrapped models: every case of `CASES` on each of them, as JSON for `test_ddp`.

Started as a process with the file for the results; it forks the ranks, which meet on 127.0.0.1.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery import SurgeryWarning, wrap_blocks
from ckpt_surgery.runtime import block as surgery_block
from ckpt_surgery.verification.probe import loss_of, switch_checkpointing
from ckpt_surgery.verification.tiny import model_classes, tiny_model
from tests.rank_cases import run_cases

SIZE = 2
STEPS = 2

Gradients = dict[str, Tensor | None]


class TowerTwice(nn.Module):
    """A stack that runs twice in a step, as a vision tower does for images and for videos."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AttentionLike() for _ in range(3))

    def forward(self, images: Tensor, videos: Tensor) -> Tensor:
        return self.tower(images) + self.tower(videos)

    def tower(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


class AttentionLike(nn.Module):
    """A block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = values + self.linear(values).tanh()
        return result


def twice() -> tuple[nn.Module, list[dict[str, Any]]]:
    torch.manual_seed(0)
    return TowerTwice(), [{"images": torch.randn(2, 8), "videos": torch.randn(3, 1, 8)} for _ in range(SIZE)]


def released(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A tiny model of transformers, and another batch for each rank."""
    tiny = tiny_model(model_classes()[name].load())
    ids = tiny.inputs["input_ids"]
    batches = [{**tiny.inputs, "input_ids": ids.roll(rank, dims=1)} for rank in range(SIZE)]
    return tiny.model.train(), batches


def image_and_video() -> tuple[nn.Module, list[dict[str, Any]]]:
    """A tiny Qwen2-VL whose vision tower runs for images and once more for videos, with other pixels on each rank."""
    tiny = tiny_model(model_classes()["Qwen2VLForConditionalGeneration"].load())
    images = dict(tiny.inputs)
    videos = images["input_ids"].clone()
    videos[videos == tiny.model.config.image_token_id] = tiny.model.config.video_token_id
    both = {name: torch.cat([images[name], images[name]], 1) for name in ("attention_mask", "labels")}
    both["input_ids"] = torch.cat([images["input_ids"], videos], 1)
    if "mm_token_type_ids" in images:  # transformers 5: 1 for images, 2 for videos
        kinds = images["mm_token_type_ids"]
        both["mm_token_type_ids"] = torch.cat([kinds, 2 * kinds], 1)
    grid = images["image_grid_thw"]
    batches = [
        {
            **both,
            "pixel_values": images["pixel_values"] * (1 + rank),
            "pixel_values_videos": images["pixel_values"] * (3 + rank),
            "image_grid_thw": grid,
            "video_grid_thw": grid,
        }
        for rank in range(SIZE)
    ]
    return tiny.model.train(), batches


def train(make: Callable[[], Any], prepare: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Train for some steps; the error, or how far the gradients are from the mean over the ranks' batches."""
    model, batches = make()
    wanted = mean_gradients(model, batches)
    told: dict[str, Any] = {"error": "", "warnings": [], "reentrant": []}
    with warnings.catch_warnings(record=True) as caught, recording(told["reentrant"]):
        warnings.simplefilter("always")
        outer = prepare(model)
        try:
            for _ in range(STEPS):
                outer.zero_grad()
                loss_of(outer(**batches[dist.get_rank()])).backward()  # type: ignore[no-untyped-call]
            told["difference"] = difference(wanted, gradients(model))
            told["gradients"] = sum(gradient is not None for gradient in gradients(model).values())
        except RuntimeError as error:
            told["error"] = " ".join(str(error).split())
    told["warnings"] = [str(one.message) for one in caught if issubclass(one.category, SurgeryWarning)]
    return told


class recording:
    """Note with which `use_reentrant` torch's checkpoint is called by blocks of a surgery."""

    def __init__(self, seen: list[bool]) -> None:
        self._seen = seen
        self._original = torch.utils.checkpoint.checkpoint

    def __enter__(self) -> None:
        def checkpoint(*args: Any, **kwargs: Any) -> Any:
            if kwargs["use_reentrant"] not in self._seen:
                self._seen.append(kwargs["use_reentrant"])
            return self._original(*args, **kwargs)

        setattr(surgery_block, "checkpoint", checkpoint)  # noqa: B010 - a module takes no other function by assignment

    def __exit__(self, *_: object) -> None:
        setattr(surgery_block, "checkpoint", self._original)  # noqa: B010


def mean_gradients(model: nn.Module, batches: list[dict[str, Any]]) -> Gradients:
    """Without checkpointing and without wrapper, one batch after the other."""
    total: Gradients = {}
    for batch in batches:
        model.zero_grad()
        loss_of(model(**batch)).backward()  # type: ignore[no-untyped-call]
        for name, gradient in gradients(model).items():
            before = total.get(name)
            share = None if gradient is None else gradient.detach().clone() / len(batches)
            total[name] = share if before is None else before + share if share is not None else before
    model.zero_grad()
    return total


def gradients(model: nn.Module) -> Gradients:
    found: Gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return found


def difference(ours: Mapping[str, Tensor | None], theirs: Mapping[str, Tensor | None]) -> float:
    """The largest absolute difference; infinite where one has a gradient that the other lacks."""
    worst = 0.0
    for name, gradient in ours.items():
        other = theirs[name]
        if gradient is None or other is None:
            worst = max(worst, 0.0 if gradient is other or (_zero(gradient) and _zero(other)) else float("inf"))
        else:
            worst = max(worst, float((gradient - other).abs().max()))
    return worst


def _zero(gradient: Tensor | None) -> bool:
    return gradient is None or not bool(gradient.any())


def in_ddp(model: nn.Module, *, wrap: dict[str, Any] | None, before: bool = True, unused: bool = False) -> nn.Module:
    """The model in DistributedDataParallel; with a surgery, or checkpointed as released in reentrant mode."""
    if wrap is None:
        switch_checkpointing(model, "reentrant")
    elif before:
        wrap_blocks(model, **wrap)
    outer = DistributedDataParallel(model, find_unused_parameters=unused)
    if wrap is not None and not before:
        wrap_blocks(outer, **wrap)
    return outer


def in_fsdp(model: nn.Module, *, wrap: dict[str, Any], before: bool) -> nn.Module:
    if before:
        wrap_blocks(model, **wrap)
    for layer in layers_of(model):
        fully_shard(layer)
    fully_shard(model)
    if not before:
        wrap_blocks(model, **wrap)
    return model


def layers_of(model: nn.Module) -> nn.ModuleList:
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList))


def unwrapped(model: nn.Module) -> nn.Module:
    """A group is there and no wrapper: every rank trains on the mean of all batches by itself."""
    wrap_blocks(model, use_reentrant=True)
    return model


REENTRANT = {"use_reentrant": True}
OFFLOAD = {"offload": "cpu"}
zamba = partial(released, "ZambaForCausalLM")
llama = partial(released, "LlamaForCausalLM")
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "zamba as released": partial(train, zamba, partial(in_ddp, wrap=None)),
    "zamba": partial(train, zamba, partial(in_ddp, wrap=REENTRANT)),
    "zamba wrapped after DDP": partial(train, zamba, partial(in_ddp, wrap=REENTRANT, before=False)),
    "llama with unused search as released": partial(train, llama, partial(in_ddp, wrap=None, unused=True)),
    "llama with unused search": partial(train, llama, partial(in_ddp, wrap=REENTRANT, unused=True)),
    "image and video as released": partial(train, image_and_video, partial(in_ddp, wrap=None)),
    "image and video": partial(train, image_and_video, partial(in_ddp, wrap=REENTRANT)),
    "tower twice": partial(train, twice, partial(in_ddp, wrap=REENTRANT)),
    "offload": partial(train, zamba, partial(in_ddp, wrap=OFFLOAD)),
    "fsdp": partial(train, llama, partial(in_fsdp, wrap={}, before=True)),
    "fsdp first": partial(train, llama, partial(in_fsdp, wrap={}, before=False)),
    "fsdp with offload": partial(train, llama, partial(in_fsdp, wrap=OFFLOAD, before=True)),
    "no wrapper": partial(train, twice, unwrapped),
}


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    run_cases(CASES, sys.argv[1], SIZE)
