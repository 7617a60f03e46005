"""Real ranks that train models with tiled MLPs, ours and a naive way, for `test_tiled`.

The naive way runs a backward for each shard inside the backward.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery import SurgeryError, long_context, wrap_blocks
from ckpt_surgery.long_sequences.tiled import tile_mlp
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.rank_cases import run_cases
from tests.zoo.ddp_models import SIZE, STEPS, Run, apart, gradients, mean_gradients, rolled, train
from tests.zoo.tiled_toys import WIDTH, adapted, ids, released, towers

SHARDS = 3
TOKENS = 7
CUT = 48
"""The declared tokens of a batch of text, so that cut blocks have three tiles."""

Tile = Callable[[nn.Module], object]
Case = Callable[[], dict[str, Any]]
Where = Literal["mlp", "layer", "model", "inside"]


class Naive(torch.autograd.Function):
    """The tiled MLP as first written: each shard's backward adds to the parameters' gradients at once."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, values: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(values)
        return torch.cat([type(module).forward(module, shard) for shard in values.chunk(SHARDS, dim=-2)], -2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (values,) = ctx.saved_tensors
        leaves = [shard.detach().requires_grad_() for shard in values.chunk(SHARDS, dim=-2)]
        for leaf, above in zip(leaves, gradient.chunk(SHARDS, dim=-2), strict=True):
            with torch.enable_grad():
                result = type(ctx.module).forward(ctx.module, leaf)
            torch.autograd.backward(result, above)
        return None, torch.cat([leaf.grad for leaf in leaves if leaf.grad is not None], -2)


def naive(model: nn.Module) -> None:
    """Run every MLP of a toy through the naive function."""
    for module in mlps(model):
        vars(module)["forward"] = partial(Naive.apply, module)


def ours(model: nn.Module, **options: Any) -> None:
    tile_mlp(mlps(model), **(options or {"num_shards": SHARDS}))


def mlps(model: nn.Module) -> list[nn.Module]:
    """List the distinct MLPs of a toy or a model of transformers, even of the classes that FSDP2 makes."""
    return [module for name, module in model.named_modules() if name.endswith("mlp")]


def toy(model: nn.Module) -> Run:
    """Give a toy one batch for each rank."""
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    batches = [{"values": torch.randn(2, TOKENS, WIDTH, generator=generator).to(dtype)} for _ in range(SIZE)]
    return Run(model, [batches] * STEPS)


def text(model: nn.Module) -> Run:
    """Give a language model one batch for each rank."""
    return Run(model, [rolled({"input_ids": ids(), "labels": ids()})] * STEPS)


def ddp(tile: Tile, model: nn.Module, **options: Any) -> nn.Module:
    tile(model)
    return DistributedDataParallel(model, **options)


def fsdp(where: Where, model: nn.Module, *, after: bool = False, wrap: bool = False) -> nn.Module:
    """Shard MLPs, layers, only the whole model or modules inside MLPs with FSDP2."""
    chosen: dict[Where, list[nn.Module]] = {
        "mlp": mlps(model),
        "layer": list(model.get_submodule("layers").children()),
        "model": [],
        "inside": [module for name, module in model.named_modules() if name.endswith("down")],
    }
    if wrap:
        wrap_blocks(model)
    if not after:
        ours(model)
    for module in (*chosen[where], model):
        fully_shard(module)
    if after:
        ours(model)
    return model


def trained(make: Callable[[], Run], prepare: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Return the error, the refusal, or the gradients' distance from one process without tiles."""
    try:
        return train(make(), prepare)
    except SurgeryError as error:
        return {"error": str(error), "difference": None}


def accumulated(
    make: Callable[[], Run], tile: Callable[[nn.Module, nn.Module], list[str]], **options: Any
) -> dict[str, Any]:
    """Run two backwards on one batch before the step, the first without synchronisation."""
    run = make()
    (batches, *_) = run.steps
    expected = mean_gradients(run.model, batches)
    outer = DistributedDataParallel(run.model, **options)
    uncut = tile(outer, run.model)
    for again in (False, True):
        with nullcontext() if again else outer.no_sync():
            loss_of(outer(**batches[dist.get_rank()])).backward()  # type: ignore[no-untyped-call]
    halved = {name: None if gradient is None else gradient / 2 for name, gradient in gradients(run.model).items()}
    return {"error": "", "difference": max(apart(expected[name], halved[name]) for name in expected), "uncut": uncut}


def tiled(outer: nn.Module, model: nn.Module) -> list[str]:
    ours(model)
    return []


def cut_context(outer: nn.Module, model: nn.Module) -> list[str]:
    return [each.reason for each in long_context(outer, CUT).cuts.values() if each.reason]


def wide(prepare: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Sum gradients in float32 in a bfloat16 model; compare with one process's tiled mean over the batches."""
    run = toy(towers().bfloat16())
    ours(run.model, num_shards=SHARDS, fp32_accumulate=True)
    return train(run, prepare)


def fully_sharded(model: nn.Module) -> nn.Module:
    for module in (*mlps(model), model):
        fully_shard(module)
    return model


def ours_in(prepare: Callable[[nn.Module], object], model: nn.Module) -> None:
    ours(model)
    prepare(model)


def cut(
    prepare: Callable[[nn.Module], nn.Module], *, adapters: bool = False, after: bool = False, host: bool = False
) -> dict[str, Any]:
    """Train a language model whose blocks are cut at their attention, before or after it is prepared.

    With `uncut`, the reasons for blocks that were not; and `heard`, how often the parameters got a gradient.
    """
    heard: Counter[str] = Counter()
    contexts = []

    def note(name: str, parameter: Tensor) -> None:
        heard[name] += 1

    def prepared(model: nn.Module) -> nn.Module:
        context = None if after else long_context(model, CUT, host=host)
        outer = prepare(model)
        contexts.append(context or long_context(model, CUT, host=host))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hook = partial(note, name)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return outer

    model = llama()
    if adapters:
        model = with_adapters(model)
    result = train(text(model), prepared)
    cuts = [each for context in contexts for each in context.cuts.values()]
    uncut = [each.reason or "never called" for each in cuts if each.reason or not each.calls]
    trained = sum(parameter.requires_grad for parameter in model.parameters())
    return {**result, "uncut": uncut, "heard": [*sorted(set(heard.values())), len(heard) == trained]}


def with_adapters(model: nn.Module) -> nn.Module:
    """Add LoRA with both matrices of each adapter other than zero."""
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], r=2, init_lora_weights=False)
    module: nn.Module = get_peft_model(model, adapters).double().train()
    return module


def layers_sharded(model: nn.Module) -> nn.Module:
    """Shard each layer of a language model in its own FSDP2 group, and the rest in another."""
    for layer in model.get_submodule("model.layers").children():
        fully_shard(layer)
    return model_sharded(model)


def model_sharded(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


def case(
    make: Callable[[], nn.Module], tile: Tile, *, given: Callable[[nn.Module], Run] = toy, **options: Any
) -> Case:
    return partial(trained, lambda: given(make()), partial(ddp, tile, **options))


def sharded(where: Where, **options: Any) -> Case:
    return partial(trained, lambda: toy(towers()), partial(fsdp, where, **options))


in_wrap = partial(ours_in, wrap_blocks)
theirs = partial(ours_in, lambda model: switch_checkpointing(model, "non_reentrant"))
shared, unused = partial(towers, shared=True), partial(towers, unused=True)
llama = partial(released, "LlamaForCausalLM")
STATIC: dict[str, Any] = {"static_graph": True}
UNUSED: dict[str, Any] = {"find_unused_parameters": True}
CASES: dict[str, Case] = {
    "naive": case(towers, naive),
    "plain": case(towers, ours),
    "static graph": case(towers, ours, **STATIC),
    "unused parameters": case(unused, ours, **UNUSED),
    "bucket views": case(towers, ours, gradient_as_bucket_view=True),
    "accumulation": partial(accumulated, lambda: toy(towers()), tiled),
    "accumulation, unused parameters": partial(accumulated, lambda: toy(unused()), tiled, **UNUSED),
    "shared, static graph": case(shared, ours, **STATIC),
    "shared, unused parameters": case(partial(shared, unused=True), ours, **UNUSED),
    "adapted": case(adapted, ours),
    "wrapped blocks": case(towers, in_wrap),
    "llama": case(llama, ours, given=text, **UNUSED),
    "llama, its own checkpointing": case(llama, theirs, given=text),
    "wide": partial(wide, DistributedDataParallel),
    "wide, fsdp of mlps": partial(wide, fully_sharded),
    "fsdp of mlps": sharded("mlp"),
    "fsdp of mlps, tiled after": sharded("mlp", after=True),
    "fsdp of layers, wrapped blocks": sharded("layer", after=True, wrap=True),
    "fsdp of the model": sharded("model"),
    "fsdp inside mlps": sharded("inside"),
}
CUT_CASES: dict[str, Case] = {
    "cut, ddp, tiles on the host": partial(cut, DistributedDataParallel, host=True),
    "cut, ddp, static graph": partial(cut, partial(DistributedDataParallel, **STATIC)),
    "cut, ddp, unused parameters": partial(cut, partial(DistributedDataParallel, **UNUSED)),
    "cut, ddp, adapters": partial(cut, DistributedDataParallel, adapters=True),
    "cut, ddp, accumulation": partial(accumulated, lambda: text(llama()), cut_context),
    "cut after, fsdp of layers": partial(cut, layers_sharded, after=True),
    "cut, fsdp of layers, tiles on the host": partial(cut, layers_sharded, host=True),
    "cut, fsdp of the model": partial(cut, model_sharded),
}


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    adapted(), llama()  # what they import is slow, and is imported once before the ranks are forked
    run_cases(CASES | CUT_CASES, sys.argv[1], SIZE)
