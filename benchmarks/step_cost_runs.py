"""What one training step costs in every way to checkpoint a model: bytes and FLOPs counted, seconds measured.

Measures only. What has to come out of it, and how it is shown, is in `step_cost_report`.
"""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import Any, Literal, TypeVar

import torch
import transformers
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from ckpt_surgery import wrap_blocks
from ckpt_surgery.measure.compare import compare
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import as_it_stands, switch_checkpointing
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from ckpt_surgery.runtime.self_check.schedule import FIRST_STEPS
from ckpt_surgery.tiny import tiny_model

W = TypeVar("W")
_WRAPPED = "._checkpoint_wrapped_module"
"""What checkpoint_wrapper adds to the names of what it wraps."""


SelfCheck = Literal["never", "first", "always"]
CHECKED_BLOCKS = {"never": "no block checked", "first": "one block checked", "always": "every block checked"}
"""What checks itself after the first steps, by the option `self_check`."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to checkpoint a model, or not to: whose it is, in which mode, and which blocks check themselves."""

    whose: Literal["none", "transformers", "torch", "wrap_blocks"]
    mode: Mode = "non_reentrant"
    self_check: SelfCheck = "never"

    def __str__(self) -> str:
        name = {"none": "no checkpointing", "torch": "checkpoint_wrapper"}.get(self.whose, self.whose)
        reentrant = ", reentrant" if self.mode == "reentrant" else ""
        return name + reentrant + ("" if self.self_check == "never" else f", {CHECKED_BLOCKS[self.self_check]}")


NONE = Way("none")
OURS = Way("wrap_blocks")
THEIRS = Way("transformers")
WAYS = (NONE, THEIRS, Way("torch"), OURS, Way("transformers", "reentrant"))
OF_LAYERS = (THEIRS, OURS)
"""The ways to compare where only the price of a call counts."""
IN_TURN = Way("wrap_blocks", self_check="first")
ALL_CHECKED = Way("wrap_blocks", self_check="always")
OF_CHECKS = (OURS, IN_TURN, ALL_CHECKED)
"""The ways to compare where only the price of a check counts."""


@dataclass(frozen=True, slots=True)
class Family:
    """A model to measure: its class in transformers, and what its tiny configuration is to say otherwise."""

    name: str
    model_class: str
    options: Mapping[str, Any] = field(default_factory=dict)


_NO_CACHE = {"use_cache": False}
"""checkpoint_wrapper hands a cache on, and the recompute writes it a second time."""
_WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
FAMILIES = (
    Family("Llama", "LlamaForCausalLM", {"num_hidden_layers": 6}),
    Family("Llama, wide", "LlamaForCausalLM", {**_WIDE, "head_dim": 64, "num_hidden_layers": 4}),
    Family("GPTBigCode", "GPTBigCodeForCausalLM", {"num_hidden_layers": 4}),
    Family("Mixtral", "MixtralForCausalLM", {"num_hidden_layers": 4}),
    Family("T5", "T5ForConditionalGeneration"),
    Family("Swin", "SwinModel"),
    Family("SwiftFormer", "SwiftFormerModel"),
    Family("Zamba", "ZambaForCausalLM"),
    Family("Zamba2", "Zamba2ForCausalLM"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """One step in one way. `faults` are what `compare` has against it, next to the step without checkpointing.

    `kept_bytes` are held between forward and backward; `seconds` are those of each timed step: processor seconds on
    the CPU, on a GPU the time until the host has queued the step. A step that has not `ended` raised an error, and
    none is timed.
    """

    kept_bytes: int
    forward_flops: int
    backward_flops: int
    faults: tuple[str, ...]
    ended: bool
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """A family in every way. `calls` of blocks are in one forward; `nested` tells whether blocks lie in blocks."""

    family: str
    calls: int
    nested: bool
    costs: Mapping[Way, Cost]


def measure(family: Family, rounds: int, device: str = "cpu") -> Measured:
    """Count what a step of a family takes in every way, and time `rounds` steps of each, one way after the other."""
    tiny = tiny_model(getattr(transformers, family.model_class), options={**_NO_CACHE, **family.options})
    tiny.model.train().to(device)
    inputs = _moved(tiny.inputs, device)
    models = {way: ready(tiny.model, way) for way in WAYS}
    costs = counted(models, inputs)
    seconds = timed({way: model for way, model in models.items() if costs[way].ended}, inputs, rounds, device)
    blocks = find_blocks(tiny.model)
    return Measured(
        family.name,
        block_calls(models[NONE], inputs),
        any(block.inside for block in blocks),
        {way: replace(cost, seconds=seconds.get(way, ())) for way, cost in costs.items()},
    )


def ready(model: nn.Module, way: Way) -> nn.Module:
    """A copy of `model` that is checkpointed in this way."""
    return switched_on(copy.deepcopy(model), way)


def switched_on(model: nn.Module, way: Way) -> nn.Module:
    """The same model, checkpointed in this way."""
    if way.whose == "wrap_blocks":
        wrap_blocks(model, self_check=way.self_check)
        return model
    switch_checkpointing(model, way.mode if way.whose == "transformers" else None)
    if way.whose == "torch":
        outermost = _outermost(model)
        apply_activation_checkpointing(model, check_fn=lambda module: module in outermost)
    return model


def counted(models: Mapping[Way, nn.Module], inputs: Mapping[str, Any]) -> dict[Way, Cost]:
    """Bytes, FLOPs and faults of the first step of each model."""
    records = {way: _record(model, way, inputs) for way, model in models.items()}
    reference = records[NONE]
    return {
        way: Cost(
            record.memory.kept,
            record.flops.forward,
            record.flops.backward,
            () if way == NONE else tuple(str(fault) for fault in compare(reference, record).faults),
            record.error is None,
        )
        for way, record in records.items()
    }


def timed(
    models: Mapping[W, nn.Module], inputs: Mapping[str, Any], rounds: int, device: str = "cpu"
) -> dict[W, tuple[float, ...]]:
    """The host's seconds of `rounds` steps of each model; every round has one of each, in another order.

    A step right after one of the same model finds warm caches: in a fixed order that would always be the same models.

    On a GPU a step starts when the device is idle and ends when the host has queued it all.
    """
    clock = process_time if device == "cpu" else perf_counter
    seconds: dict[W, list[float]] = {way: [] for way in models}
    for model in models.values():
        for _ in range(FIRST_STEPS):
            _step(model, inputs)
    gc.collect()
    shuffled = random.Random(0)
    for _ in range(rounds):
        for way in shuffled.sample(tuple(models), len(models)):
            if device != "cpu":
                torch.cuda.synchronize()
            start = clock()
            _step(models[way], inputs)
            seconds[way].append(clock() - start)
    return {way: tuple(times) for way, times in seconds.items()}


def block_calls(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """How often the outermost blocks are called in one forward."""
    calls: list[nn.Module] = []
    handles = [block.register_forward_pre_hook(lambda module, _: calls.append(module)) for block in _outermost(model)]
    model(**inputs)
    for handle in handles:
        handle.remove()
    return len(calls)


def price_of_calls(layers: int, rounds: int, device: str = "cpu") -> Measured:
    """A Llama whose layers do next to nothing, with all their modules: what is left is the price of a call."""
    sizes = {"num_hidden_layers": layers, "hidden_size": 16, "intermediate_size": 16, "vocab_size": 32}
    tiny = tiny_model(transformers.LlamaForCausalLM, options={**_NO_CACHE, **sizes})
    tiny.model.model.layers = nn.ModuleList(_Nothing(tiny.config, number) for number in range(layers))
    tiny.model.train().to(device)
    models = {way: ready(tiny.model, way) for way in OF_LAYERS}
    seconds = timed(models, _moved(tiny.inputs, device), rounds, device)
    return Measured(
        "Llama, empty layers", layers, False, {way: Cost(0, 0, 0, (), True, seconds[way]) for way in OF_LAYERS}
    )


def price_of_checks(rounds: int, device: str = "cpu", *, tokens: int, layers: int = 24) -> Measured:
    """A Llama of many blocks, of which none checks itself, one in each step, or all."""
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=512,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=tokens,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).train().to(device)
    ids = torch.randint(config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0)).to(device)
    seconds = timed({way: ready(model, way) for way in OF_CHECKS}, {"input_ids": ids, "labels": ids}, rounds, device)
    costs = {way: Cost(0, 0, 0, (), True, seconds[way]) for way in OF_CHECKS}
    return Measured(f"Llama, {layers} layers, {tokens} tokens", layers, False, costs)


class _Nothing(LlamaDecoderLayer):  # type: ignore[misc]  # transformers has no types here
    """Called like a Llama layer, and one product: something has to be saved, or nothing is recomputed."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: object = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **_: object,
    ) -> torch.Tensor:
        scaled: torch.Tensor = hidden_states * self.input_layernorm.weight
        return scaled


def _moved(inputs: Mapping[str, Any], device: str) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def _record(model: nn.Module, way: Way, inputs: Mapping[str, Any]) -> RunRecord:
    names = {block: name.replace(_WRAPPED, "") for name, block in model.named_modules()}
    blocks = {names[block.module]: block.module for block in find_blocks(model)}
    mode = way.mode if way.whose in ("transformers", "wrap_blocks") else None
    record = run_step(model, inputs, blocks=blocks, checkpointing=mode, switch=as_it_stands)
    return replace(record, gradients=_unwrapped(record.gradients), buffers=_unwrapped(record.buffers))


def _unwrapped(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace(_WRAPPED, ""): value for name, value in values.items()}


def _outermost(model: nn.Module) -> Sequence[nn.Module]:
    return [block.module for block in find_blocks(model) if not block.inside]


def _step(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    model.zero_grad(set_to_none=True)
    loss_of(model(**inputs)).backward()  # type: ignore[no-untyped-call]
