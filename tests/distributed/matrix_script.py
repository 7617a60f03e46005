"""Released models in DistributedDataParallel on real ranks, as released and cured, for `test_matrix`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import peft
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery import wrap_blocks
from ckpt_surgery.distributed.ready import ddp_ready
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.tiny import model_classes, tiny_config, tiny_inputs, tiny_model
from tests.conftest import installed_major
from tests.rank_cases import own_group, run_cases
from tests.zoo.ddp_models import SIZE, STEPS, Batch, Run, released, rolled, train

RELEASE = installed_major("transformers")
WAIT = 20  # the most seconds that a rank waits for one that has left; it ends with the other's group


def shared_alone() -> Run:
    """Train only the shared block of a Zamba, which is then the last to be ready each time."""
    run = released("ZambaForCausalLM")
    model: Any = run.model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("shared_transf" in name)
    model.enable_input_require_grads()
    return run


def zamba2() -> Run:
    """Build a Zamba2 that uses its shared block twice; a tiny one uses it once."""
    kind = model_classes()["Zamba2ForCausalLM"]
    config: Any = tiny_config(kind.config_class())
    mamba = config.layers_block_type[0]
    config.layers_block_type = [mamba, "hybrid", mamba, "hybrid"]
    config.num_hidden_layers, config.hybrid_layer_ids = 4, [1, 3]
    return made(kind.load(), config)


def tied() -> Run:
    kind = model_classes()["LlamaForCausalLM"]
    config: Any = tiny_config(kind.config_class())
    config.tie_word_embeddings = True
    return made(kind.load(), config)


def made(kind: Any, config: Any) -> Run:
    torch.manual_seed(0)
    model: nn.Module = kind(config).train()
    return Run(model, [rolled(tiny_inputs(model))] * STEPS)


def lora(*, inputs: bool) -> Run:
    """Put low-rank adapters in a frozen Llama; with `inputs`, its embeddings' outputs need gradient."""
    run = released("LlamaForCausalLM")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model: Any = peft.get_peft_model(cast(Any, run.model), config)
    if inputs:
        model.enable_input_require_grads()
    return Run(model.train(), run.steps)


def qwen(*steps: Sequence[str], frozen: bool = False) -> Run:
    """Build a tiny Qwen2-VL; batches list for each step the ranks' kinds: "text", "image", or "video" for both."""
    tiny = tiny_model(model_classes()["Qwen2VLForConditionalGeneration"].load())
    model: Any = tiny.model.train()
    if frozen:
        model.model.visual.requires_grad_(False)
    return Run(model, [[_batch(kind, tiny.inputs, model.config, rank) for rank, kind in enumerate(s)] for s in steps])


def _batch(kind: str, inputs: Mapping[str, Any], config: Any, rank: int) -> Batch:
    words = inputs["input_ids"]
    if kind == "text":
        special = torch.tensor([config.vision_start_token_id, config.vision_end_token_id, config.image_token_id])
        ids = words.masked_fill(torch.isin(words, special), 7).roll(rank, dims=1)
        return {"input_ids": ids, "attention_mask": inputs["attention_mask"], "labels": ids}
    images = {**inputs, "pixel_values": inputs["pixel_values"] * (1 + rank)}
    if kind == "image":
        return images
    videos = words.masked_fill(words == config.image_token_id, config.video_token_id)
    twice = {name: torch.cat([inputs[name]] * 2, 1) for name in ("attention_mask", "labels")}
    if "mm_token_type_ids" in inputs:  # transformers 5: 1 for images, 2 for videos
        kinds = inputs["mm_token_type_ids"]
        twice["mm_token_type_ids"] = torch.cat([kinds, 2 * kinds], 1)
    return {
        **images,
        **twice,
        "input_ids": torch.cat([words, videos], 1),
        "pixel_values_videos": inputs["pixel_values"] * (3 + rank),
        "video_grid_thw": inputs["image_grid_thw"],
    }


def uncured(make: Callable[[], Run], mode: Mode | None, **options: Any) -> dict[str, Any]:
    """Train as released, checkpointed by the model's own switch or not at all."""

    def prepare(model: nn.Module) -> nn.Module:
        if mode is not None:
            switch_checkpointing(model, mode)
        return DistributedDataParallel(model, **options)

    return train(make(), prepare)


def deserted(make: Callable[[], Run], mode: Mode) -> dict[str, Any]:
    """Train as `uncured`, where a rank may wait in vain."""
    with own_group(WAIT) as group:
        result = uncured(make, mode, process_group=group)
        gc.collect()
    return result


def cured(make: Callable[[], Run], **surgery: Any) -> dict[str, Any]:
    """Train with a surgery and the options that the batches ask for."""
    run = make()
    ready = ddp_ready(run.model, *(batch for batches in run.steps for batch in batches))

    def prepare(model: nn.Module) -> nn.Module:
        wrap_blocks(model, **surgery)
        return DistributedDataParallel(model, **ready.options)

    return {**train(run, prepare), "options": ready.options}


def asked_inside() -> dict[str, Any]:
    """Ask on one rank about a model whose DistributedDataParallel has just failed; then let the ranks meet."""
    run = qwen(*[["text"] * SIZE] * STEPS)
    outer = DistributedDataParallel(run.model)
    result: dict[str, Any] = {"error": "", "options": None}
    try:
        for batches in run.steps:
            loss_of(outer(**batches[dist.get_rank()])).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        result["error"] = str(error)
    if dist.get_rank() == 0:
        result["options"] = ddp_ready(outer, *run.steps[0]).options
    met = torch.ones(1)
    dist.all_reduce(met)
    return {**result, "met": int(met)}


MODELS: dict[str, Callable[[], Run]] = {
    "zamba": partial(released, "ZambaForCausalLM"),
    "zamba, shared alone": shared_alone,
    "zamba2": zamba2,
    "tied llama": tied,
    "t5": partial(released, "T5ForConditionalGeneration"),
    "gpt_bigcode": partial(released, "GPTBigCodeForCausalLM"),
    "lora": partial(lora, inputs=False),
    "lora with inputs": partial(lora, inputs=True),
    "image": partial(qwen, *[["image"] * SIZE] * STEPS),
    "image and video": partial(qwen, *[["video"] * SIZE] * STEPS),
    "text": partial(qwen, *[["text"] * SIZE] * STEPS),
    "image then text": partial(qwen, ["image"] * SIZE, ["text"] * SIZE),
    "text beside image": partial(qwen, *[["text", "image"]] * STEPS),
    "frozen tower": partial(qwen, ["image"] * SIZE, ["text", "image"], frozen=True),
}
THREE = partial(qwen, ["image"] * SIZE, ["text"] * SIZE, ["image"] * SIZE)
GROWING = partial(qwen, ["text"] * SIZE, ["image"] * SIZE)
SEARCHED = {"find_unused_parameters": True}
BELIEVED = {"static_graph": True}


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    table: dict[str, Callable[[], dict[str, Any]]] = {}
    for place, (name, make) in enumerate(MODELS.items()):
        reentrant = deserted if name == "text beside image" else uncured
        table[f"{name}, reentrant"] = partial(reentrant, make, "reentrant")
        table[f"{name}, cured"] = partial(cured, make)
        if place % 2 == RELEASE % 2:  # with offload half of the models under one release, the others under the other
            table[f"{name}, cured with offload"] = partial(cured, make, offload="cpu")
    for name in ("tied llama", "image", "text"):
        table[f"{name}, reentrant and searched"] = partial(uncured, MODELS[name], "reentrant", **SEARCHED)
    modes: tuple[Mode, ...] = ("reentrant", "non_reentrant")
    for mode in modes:
        table[f"image then text, {mode} and static"] = partial(uncured, MODELS["image then text"], mode, **BELIEVED)
    table["image, text, image, static"] = partial(uncured, THREE, None, **BELIEVED)
    table["text then image, static"] = partial(uncured, GROWING, None, **BELIEVED)
    table["zamba, released switch"] = partial(uncured, MODELS["zamba"], "non_reentrant")
    table["image then text, released switch"] = partial(
        uncured, MODELS["image then text"], "non_reentrant", **SEARCHED
    )
    table["asked inside"] = asked_inside
    return table


CASES = cases()


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    run_cases(CASES, sys.argv[1], SIZE)
