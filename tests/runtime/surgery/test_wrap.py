"""The interface of `wrap_blocks`: options, the table, a second call, undoing, and what it refuses."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import ckpt_surgery
from ckpt_surgery import Surgery, SurgeryError, wrap_blocks
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.measure import toys
from tests.measure.toys import WIDTH, Layer, PlainLayer, SureLayer, changed, model_of, snapshot, values
from tests.zoo import surgery_toys as own
from tests.zoo.surgery_toys import KEPT, ONCE, blocks_of, differences, step
from tests.zoo.tiny_models import gpt_bigcode, llama, t5, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Attention(nn.Linear):
    """A layer whose name makes the module around it a block."""


class MixingLayer(PlainLayer):
    def __init__(self) -> None:
        super().__init__()
        self.linear = Attention(WIDTH, WIDTH)


class Towers(toys.Model):
    """Two stacks of layers, one of plain modules, and a single layer."""

    layers: Any
    vision: Any
    audio: Any

    def __init__(self) -> None:
        super().__init__(*(SureLayer() for _ in range(4)))
        self.vision = nn.Module()
        self.vision.stages = nn.ModuleList(Layer() for _ in range(3))
        self.audio = nn.Module()
        self.audio.plain = nn.ModuleList(MixingLayer() for _ in range(3))
        self.neck = Layer()

    def forward(self, values: Tensor) -> Any:
        hidden_states = self.first(values)
        for stage in self.vision.stages:
            hidden_states = stage(hidden_states)
        hidden_states = self.run_layers(self.neck(hidden_states))
        for block in self.audio.plain:
            hidden_states = block(hidden_states)
        return self.last(hidden_states)


BLOCKS = [*(f"layers.{n}" for n in range(4)), *(f"vision.stages.{n}" for n in range(3)), "neck"]
PLAIN = [f"audio.plain.{n}" for n in range(3)]


def towers() -> Towers:
    torch.manual_seed(1)
    return Towers().double().train()


def recomputed(model: nn.Module) -> list[str]:
    """Return which blocks of `Towers` a step recomputes; the gradients have to be right."""
    blocks = {name: model.get_submodule(name) for name in [*BLOCKS, *PLAIN]}
    record, plain = step(model, blocks=blocks), step(towers(), blocks=blocks)
    assert differences(record, plain) == []
    assert set(record.entries.values()) <= {ONCE, KEPT}
    return [name for name, entries in record.entries.items() if entries == ONCE]


def test_the_signature_is_the_documented_one() -> None:
    parameters = inspect.signature(wrap_blocks).parameters
    assert {name: p.default for name, p in parameters.items() if name != "model"} == {
        "use_reentrant": False,
        "every_n": 1,
        "first": None,
        "offload": None,
        "offload_pinned": None,
        "preserve_rng_state": True,
        "stacks": None,
        "skip_frozen": True,
        "blocks": None,
        "context_fn": None,
        "self_check": "first",
        "save": None,
        "save_offload": False,
    }
    assert {"wrap_blocks", "Surgery", "SurgeryError", "SurgeryWarning"} <= set(ckpt_surgery.__all__)


CHOSEN: list[tuple[dict[str, Any], list[str]]] = [
    ({}, [*BLOCKS, *PLAIN]),
    (
        {"every_n": 2},
        ["layers.0", "layers.2", "vision.stages.0", "vision.stages.2", "neck", "audio.plain.0", "audio.plain.2"],
    ),
    ({"every_n": 3}, ["layers.0", "layers.3", "vision.stages.0", "neck", "audio.plain.0"]),
    ({"stacks": "layers"}, BLOCKS[:4]),
    ({"stacks": "vision"}, BLOCKS[4:7]),
    ({"stacks": "vis*"}, BLOCKS[4:7]),
    ({"stacks": ["audio.plain", "la?ers"]}, [*BLOCKS[:4], *PLAIN]),
    ({"stacks": ""}, ["neck"]),
    ({"stacks": "layers.[12]"}, BLOCKS[1:3]),
    ({"stacks": ["vision", "layers.3"]}, BLOCKS[3:7]),
    ({"blocks": "Layer"}, [*BLOCKS[4:7], "neck"]),
    ({"blocks": SureLayer}, BLOCKS[:4]),
    ({"blocks": [MixingLayer, "SureLayer"]}, [*BLOCKS[:4], *PLAIN]),
    ({"stacks": ["vision", "layers"], "blocks": Layer}, BLOCKS[4:7]),
]


@pytest.mark.parametrize(("options", "expected"), CHOSEN, ids=str)
def test_options_choose_blocks_by_number_stack_name_and_class(options: dict[str, Any], expected: list[str]) -> None:
    model = towers()
    assert isinstance(wrap_blocks(model, **options), Surgery)
    assert recomputed(model) == expected


FIRST: list[tuple[dict[str, Any], list[bool]]] = [
    ({"first": 2}, [True, True, False, False]),
    ({"first": {"model": 2}}, [True, True, False, False]),
    ({"first": {"model.*": 2}}, [True, True, False, False]),
    ({"first": {"model.layers": 2, "*": 4}}, [True, True, False, False]),
    ({"first": 3, "every_n": 2}, [True, False, True, False]),
    ({"first": 9}, [True] * 4),
    ({"first": 0}, [False] * 4),
]


@pytest.mark.parametrize(("options", "expected"), FIRST, ids=str)
def test_only_the_first_blocks_are_checkpointed_also_after_a_switch(
    options: dict[str, Any], expected: list[bool]
) -> None:
    model = llama()
    surgery = wrap_blocks(model, **options)

    def done() -> list[bool]:
        return [surgery.checkpoints(block) for stack in surgery.stacks for block in stack.blocks]

    assert done() == expected
    assert ("left out by first" in str(surgery)) is (any(expected) and not all(expected))
    model.gradient_checkpointing_disable()
    assert not any(done())
    model.gradient_checkpointing_enable()
    assert done() == expected


def test_only_the_named_class_of_a_stack_of_two_is_checkpointed() -> None:
    model = model_of(SureLayer, toys.Layer, SureLayer, toys.Layer)
    surgery = wrap_blocks(model, blocks="SureLayer")
    entries = step(model, blocks=blocks_of(model)).entries
    assert list(entries.values()) == [ONCE, KEPT, ONCE, KEPT]
    assert "not among the blocks" in str(surgery)


def test_an_inner_class_can_be_named_in_place_of_the_one_around_it() -> None:
    model = model_of(toys.Stage, toys.Stage)
    surgery = wrap_blocks(model, blocks="Layer")
    inner = {name: block.get_submodule("inner") for name, block in blocks_of(model).items()}
    norms = {name: block.get_submodule("norm") for name, block in blocks_of(model).items()}
    assert set(step(model, blocks=inner).entries.values()) == {ONCE}
    assert set(step(model, blocks=norms).entries.values()) == {KEPT}
    assert "Stage" not in str(surgery)


def test_a_cache_is_made_as_before_if_only_other_blocks_are_checkpointed() -> None:
    model = t5()
    wrap_blocks(model, stacks="encoder")
    assert model(**tokens()).past_key_values.get_seq_length() == 6
    wrap_blocks(model)
    assert model(**tokens()).past_key_values is None


@pytest.mark.parametrize("skip", [True, False], ids=["skipped", "not skipped"])
def test_a_frozen_tower_is_left_alone_while_its_inputs_need_no_gradient(skip: bool) -> None:
    model, plain = towers(), towers()
    surgery = wrap_blocks(model, skip_frozen=skip)
    for network in (model, plain):
        network.first.requires_grad_(False)
        network.vision.requires_grad_(False)
    blocks = {name: model.get_submodule(name) for name in BLOCKS}
    record = step(model, blocks=blocks)
    assert differences(record, step(plain, blocks=blocks)) == []
    # nothing leads back to a frozen block, so that even where it is checkpointed nothing asks for its recompute
    assert [record.entries[name] for name in BLOCKS] == [ONCE] * 4 + [KEPT] * 3 + [ONCE]
    assert ("frozen: while its inputs" in str(surgery)) == skip


def test_a_frozen_tower_with_gradient_in_its_inputs_is_checkpointed() -> None:
    model, plain = towers(), towers()
    wrap_blocks(model)
    for network in (model, plain):
        network.vision.requires_grad_(False)
    blocks = {name: model.get_submodule(name) for name in BLOCKS}
    record = step(model, blocks=blocks)
    assert differences(record, step(plain, blocks=blocks)) == []
    assert set(record.entries.values()) == {ONCE}


def test_a_selective_policy_decides_what_is_saved() -> None:
    model = model_of(SureLayer, SureLayer)
    products = torch.ops.aten.addmm.default
    made: list[int] = []

    def contexts() -> Any:
        made.append(1)
        return create_selective_checkpoint_contexts([products])  # type: ignore[no-untyped-call]

    wrap_blocks(model, context_fn=contexts)
    assert differences(step(model), step(model_of(SureLayer, SureLayer))) == []
    assert len(made) == 2


class AttributeLayer(SureLayer):
    """A layer that drops by a rate without a module."""

    attention_dropout = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.attention_dropout = 0.1


class JitterLayer(SureLayer):
    """A layer that multiplies by random numbers, as routers do."""

    def __init__(self) -> None:
        super().__init__()
        vars(self.linear)["router_jitter_noise"] = 0.1


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Layer, "dropout of Layer"),
        (AttributeLayer, "attention_dropout of AttributeLayer"),
        (JitterLayer, r"linear\.router_jitter_noise of JitterLayer"),
    ],
)
def test_randomness_is_not_left_alone_while_something_drops(kind: Callable[[], nn.Module], what: str) -> None:
    model = model_of(kind, kind)
    before = snapshot(model)
    with pytest.raises(SurgeryError, match=f"preserve_rng_state=False while {what} acts at random"):
        wrap_blocks(model, preserve_rng_state=False)
    assert changed(before, snapshot(model)) == []
    wrap_blocks(model, preserve_rng_state="unsafe")


def test_a_stack_without_active_dropout_needs_no_state_beside_one_with_it() -> None:
    model = towers()
    wrap_blocks(model, stacks=["layers", "audio"], preserve_rng_state=False)
    assert recomputed(model) == [*BLOCKS[:4], *PLAIN]


def test_the_table_names_stacks_classes_numbers_and_reasons() -> None:
    surgery = wrap_blocks(towers(), every_n=2, stacks=["layers", "vision", ""], use_reentrant=True)
    lines = [" ".join(line.split()) for line in str(surgery).splitlines()]
    assert lines[0] == "Towers: 5 of 11 blocks checkpointed, non-reentrant"
    assert lines[1] == "stack block checkpointed how left alone"
    assert lines[-1] == "asked for use_reentrant=True: runs non-reentrant, with the same gradients"
    assert sorted(lines[3:-1]) == [
        "(the model) Layer 1 of 1 checkpointed",
        "audio.plain MixingLayer 0 of 3 not among the stacks",
        "layers SureLayer 2 of 4 checkpointed left out by every_n",
        "vision.stages Layer 2 of 3 checkpointed left out by every_n",
    ]


def test_the_table_tells_what_was_done_to_a_block() -> None:
    assert "checkpointed, 1 nested off" in str(wrap_blocks(model_of(toys.Stage, toys.Stage)))
    assert "checkpointed, a plain module" in str(wrap_blocks(model_of(PlainLayer, PlainLayer, PlainLayer)))
    surgery = wrap_blocks(model_of(Layer, Layer))
    assert str(surgery).startswith("Model: 2 of 2 blocks checkpointed, non-reentrant\n")
    surgery.disable(surgery.model)
    assert "Model: 0 of 2 blocks checkpointed (switched off)" in str(surgery)


def test_a_second_call_changes_the_options_and_wraps_nothing_twice() -> None:
    model = towers()
    surgery = wrap_blocks(model, stacks="layers", use_reentrant=True)
    assert recomputed(model) == BLOCKS[:4]
    assert wrap_blocks(model, every_n=4) is surgery
    assert recomputed(model) == ["layers.0", "vision.stages.0", "neck", "audio.plain.0"]
    assert "non-reentrant" in str(surgery)
    before = snapshot(model)
    for _ in range(3):
        wrap_blocks(model, every_n=4)
    assert [name for name in changed(before, snapshot(model)) if ":" not in name] == []
    assert sum(len(module._forward_pre_hooks) for module in model.modules()) == len({"", "vision", "audio"})
    surgery.undo()
    assert recomputed(model) == []


def test_a_second_call_that_is_refused_leaves_the_first_in_place() -> None:
    model = towers()
    wrap_blocks(model, stacks="layers")
    before = snapshot(model)
    with pytest.raises(SurgeryError):
        wrap_blocks(model, stacks="nowhere")
    with pytest.raises(SurgeryError):
        wrap_blocks(model, preserve_rng_state=False)
    assert changed(before, snapshot(model)) == []
    assert recomputed(model) == BLOCKS[:4]


def test_in_a_with_the_model_is_as_before_at_its_end() -> None:
    model = towers()
    before = snapshot(model)
    with wrap_blocks(model, every_n=2) as surgery:
        assert surgery.options.every_n == 2
    assert changed(before, snapshot(model)) == []
    with pytest.raises(KeyError), wrap_blocks(model):
        raise KeyError
    assert changed(before, snapshot(model)) == []
    with wrap_blocks(model) as surgery:
        surgery.undo()  # and once is enough


@pytest.mark.parametrize("make", [llama, gpt_bigcode, towers])
@pytest.mark.parametrize("enabled", [False, True], ids=["off before", "on before"])
def test_undo_takes_everything_back_that_has_happened_since(make: Callable[[], Any], enabled: bool) -> None:
    model = make()
    inputs = values() if make is towers else tokens()
    model(**inputs)
    if enabled:
        switch_checkpointing(model, "reentrant")
    before = snapshot(model)
    surgery = wrap_blocks(model)
    for mode in own.MODES:
        switch_checkpointing(model, mode)  # on some releases each leaves a hook on the embeddings
        model(**inputs)
    wrap_blocks(model, every_n=2)
    model.zero_grad()
    surgery.undo()
    del surgery
    torch.set_rng_state(before["torch"])
    assert changed(before, snapshot(model)) == []


def test_a_second_call_leaves_the_handles_of_embedding_hooks() -> None:
    model = llama()
    wrap_blocks(model)
    model.enable_input_require_grads()
    wrap_blocks(model, every_n=2)
    model.disable_input_require_grads()
    assert not model.get_input_embeddings()._forward_hooks


def test_undo_twice_is_an_error() -> None:
    model = towers()
    surgery = wrap_blocks(model)
    surgery.undo()
    before = snapshot(model)
    with pytest.raises(SurgeryError, match="the surgery on Towers was undone before"):
        surgery.undo()
    assert changed(before, snapshot(model)) == []
    assert wrap_blocks(model) is not surgery


def replaced(model: Any) -> None:
    model.layers[1] = SureLayer().double()


def removed(model: Any) -> None:
    del model.layers[3]


def swapped(model: Any) -> None:
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]


def wrapped_in(model: Any) -> None:
    model.layers[2] = nn.Sequential(model.layers[2])


@pytest.mark.parametrize("change", [replaced, removed, swapped, wrapped_in])
def test_undo_after_blocks_have_moved_is_an_error_that_names_one(change: Callable[[Any], None]) -> None:
    model = towers()
    surgery = wrap_blocks(model)
    layers = list(model.layers)
    change(model)
    before = snapshot(model)
    with pytest.raises(SurgeryError, match=r"SureLayer layers\.\d is no longer at its place in Towers"):
        surgery.undo()
    assert changed(before, snapshot(model)) == []
    model.layers = nn.ModuleList(layers)
    surgery.undo()
    assert recomputed(model) == []


def meta() -> nn.Module:
    with torch.device("meta"):
        return Towers()


def compiled(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def inner_compiled(model: Any) -> nn.Module:
    model.layers[0].compile(backend="eager")
    return model  # type: ignore[no-any-return]


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "a tensor": (lambda: torch.zeros(2), {}, r"the model is of type Tensor: give a torch\.nn\.Module"),
    "a class": (lambda: Towers, {}, r"the model is of type type: give"),
    "nothing": (lambda: None, {}, r"the model is of type NoneType: give"),
    "a model without blocks": (lambda: nn.Linear(2, 2), {}, r"Linear has no blocks to checkpoint"),
    "a model with one plain block": (lambda: model_of(PlainLayer), {}, r"Model has no blocks to checkpoint"),
    "data parallelism in one process": (lambda: nn.DataParallel(towers()), {}, r"DataParallel runs copies"),
    "a compiled model": (lambda: torch.compile(towers(), backend="eager"), {}, r"is compiled already: .* after it"),
    "a model compiled in place": (lambda: compiled(towers()), {}, r"Towers is compiled already"),
    "a model with a compiled block": (lambda: inner_compiled(towers()), {}, r"Towers is compiled already"),
    "meta tensors": (meta, {}, r"Towers has parameters on the meta device: .*to_empty"),
    "a tower that is not there": (towers, {"stacks": "text*"}, r"no stack matches 'text\*': the stacks are layers, v"),
    "one of two towers": (towers, {"stacks": ["layers", "txt"]}, r"no stack matches 'txt'"),
    "no tower": (towers, {"stacks": []}, r"stacks names nothing"),
    "a number for a tower": (towers, {"stacks": 3}, r"stacks is 3: give"),
    "a class that is not there": (towers, {"blocks": "BertLayer"}, r"no block of the class BertLayer in Towers: its"),
    "a class of no block": (towers, {"blocks": toys.Stage}, r"no block of the class Stage in Towers"),
    "no class": (towers, {"blocks": ()}, r"blocks names nothing"),
    "an instance for a class": (towers, {"blocks": [3]}, r"blocks is \[3\]: give"),
    "a class outside of the towers": (towers, {"stacks": "layers", "blocks": Layer}, r"no block of .* in the stacks"),
    "every 0th": (towers, {"every_n": 0}, r"every_n is 0: give 1 for every block"),
    "every 1.5th": (towers, {"every_n": 1.5}, r"every_n is 1\.5: give"),
    "every Trueth": (towers, {"every_n": True}, r"every_n is True: give"),
    "a stack for first that is not there": (
        llama,
        {"first": {"decoder": 1}},
        r"no stack matches 'decoder': the stacks",
    ),
    **{
        f"first={value}": (llama, {"first": value}, r"first is")
        for value in (-1, True, 1.5, "2", {}, {"model.layers": -1}, {"model.layers": "1"})
    },
    "an unknown place": (towers, {"offload": "dsk"}, r"offload is 'dsk', and there is no such folder: give"),
    "a word for the mode": (towers, {"use_reentrant": "yes"}, r"^use_reentrant is 'yes': give True or False$"),
    "a word for randomness": (towers, {"preserve_rng_state": "no"}, r"preserve_rng_state is 'no': give"),
    "a tensor for randomness": (towers, {"preserve_rng_state": torch.tensor(1)}, r"preserve_rng_state is tensor\(1\)"),
    "a name of no operator": (towers, {"save": "aten.mn"}, r"save names aten.mn, which is not an operator of torch"),
    "no function of contexts": (towers, {"context_fn": 3}, r"context_fn is of type int: give a function"),
    "dropout without the generators' state": (towers, {"preserve_rng_state": False}, r"acts at random"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_clear_error_and_changes_nothing(case: str) -> None:
    make, options, message = REFUSED[case]
    model = make()
    before = attributes(model)
    with pytest.raises(SurgeryError, match=message) as error:
        wrap_blocks(model, **options)
    assert "\n" not in str(error.value)
    assert attributes(model) == before


def attributes(model: Any) -> list[dict[str, Any]]:
    """Return all attributes of all modules, with copies of dictionaries."""
    if not isinstance(model, nn.Module):
        return []
    return [
        {name: copy.copy(value) if isinstance(value, dict) else value for name, value in vars(module).items()}
        for module in model.modules()
    ]


def test_a_part_of_a_model_that_has_a_surgery_is_refused() -> None:
    model = llama()
    surgery = wrap_blocks(model)
    for part in (model.model, model.model.layers, model.model.layers[0]):
        before = snapshot(model)
        with pytest.raises(SurgeryError, match="is part of a model that has a surgery"):
            wrap_blocks(part)
        assert changed(before, snapshot(model)) == []
    surgery.undo()
    wrap_blocks(model.model)


def test_a_model_around_a_surgery_is_refused_if_it_has_other_blocks() -> None:
    model = towers()
    surgery = wrap_blocks(model.vision)
    before = snapshot(model)
    with pytest.raises(SurgeryError, match="Towers holds a model with a surgery of its own: undo that first"):
        wrap_blocks(model)
    assert changed(before, snapshot(model)) == []
    surgery.undo()
    wrap_blocks(model)


def test_two_parts_can_have_separate_surgeries() -> None:
    model = towers()
    vision, plain = wrap_blocks(model.vision), wrap_blocks(model.audio)
    assert recomputed(model) == [*BLOCKS[4:7], *PLAIN]
    with pytest.raises(SurgeryError, match="Towers holds models with surgeries of their own"):
        wrap_blocks(model)
    vision.undo()
    assert recomputed(model) == PLAIN
    plain.undo()


def test_scripted_blocks_are_refused_and_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.ModuleList([torch.jit.script(nn.Linear(WIDTH, WIDTH)) for _ in range(2)]))
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(
        SurgeryError, match=r"^Linear is a scripted block, whose forward cannot be replaced: .*blocks="
    ):
        wrap_blocks(model, blocks="RecursiveScriptModule")
    assert all(vars(module).keys() == before[name].keys() for name, module in model.named_modules())


class PlainTower(nn.Module):
    """A stack of plain blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return values


class Tower(PlainTower):
    """A stack that checkpoints its blocks by hand if a flag of its class says so, as in open_clip."""

    grad_checkpointing = True

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = checkpoint(block, values, use_reentrant=True) if self.grad_checkpointing else block(values)
        return values


def recomputes(model: PlainTower) -> int:
    """Count how often blocks run in the backward of a step."""
    counted: list[int] = []
    for block in model.blocks:
        block.get_submodule("0").register_forward_pre_hook(lambda *_: counted.append(1))
    output = model(torch.ones(2, 4))
    forwards = len(counted)
    output.sum().backward()
    return len(counted) - forwards


def test_a_flag_of_the_class_is_switched_off_and_comes_back() -> None:
    model = Tower()
    with wrap_blocks(model):
        assert not model.grad_checkpointing
        assert recomputes(model) == 3
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert "grad_checkpointing" not in vars(model)


@pytest.mark.parametrize("frozen", [[0, 1, 2], [1]])
def test_a_stack_all_in_evaluation_mode_is_checkpointed_a_lone_block_not(frozen: list[int]) -> None:
    model = PlainTower()
    for place in frozen:
        model.blocks[place].eval()
    wrap_blocks(model)
    assert recomputes(model) == (3 if len(frozen) == 3 else 2)
