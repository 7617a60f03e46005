"""Blocks are found in models from outside transformers, at the level that saves more, or the reason is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from ckpt_surgery import SurgeryError, verify, wrap_blocks
from ckpt_surgery.runtime.blocks.selection import chosen_level
from ckpt_surgery.runtime.surgery.surgery import Surgery
from tests.zoo.stack_toys import (
    WIDTH,
    Attention,
    Branches,
    Cells,
    Chain,
    FeedBlock,
    FlaggedStage,
    Library,
    Namespace,
    OtherBlock,
    Recurrent,
    Reduction,
    SelfCheckpointing,
    Stage,
    SwitchableChain,
    around_single_layers,
    blocks,
    values,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]


def wrapped(model: nn.Module) -> dict[str, str]:
    """Return stack and class of every block that is checkpointed."""
    surgery = wrap_blocks(model)
    return {block.name: type(block.module).__name__ for stack in surgery.stacks for block in stack.blocks}


def sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(Namespace, {"FeedBlock": 3}, id="a list in a dictionary"),
        pytest.param(lambda: nn.Sequential(*blocks()), {"FeedBlock": 3}, id="the model is the stack"),
        pytest.param(lambda: Chain(body=blocks(3, sequence)), {"Sequential": 3}, id="sequences of torch's layers"),
        pytest.param(
            lambda: Chain(body=nn.Sequential(*blocks(3, around_single_layers))),
            {"Sequential": 3},
            id="sequences of a module and single layers",
        ),
        pytest.param(
            lambda: Chain(body=nn.ModuleList([FeedBlock()] * 3)), {"FeedBlock": 1}, id="one block, three times"
        ),
        pytest.param(Recurrent, {"LSTM": 2}, id="recurrent layers of torch"),
        pytest.param(Cells, {"GRUCell": 2}, id="recurrent cells of torch"),
        pytest.param(
            lambda: Chain(a1=Branches(), a2=Branches(), a3=Branches()), {"Branches": 3}, id="attributes around lists"
        ),
        pytest.param(lambda: Chain(left=Stage(2), right=Stage(2)), {"FeedBlock": 4}, id="two towers"),
        pytest.param(lambda: Chain(stages=blocks(2, Stage)), {"FeedBlock": 12}, id="blocks of stages"),
        pytest.param(
            lambda: Chain(body=nn.Sequential(OtherBlock(), *blocks(2))), {"OtherBlock": 1, "FeedBlock": 2}, id="mixed"
        ),
        pytest.param(
            lambda: Chain(layers=nn.ModuleList([Attention(), FeedBlock(), Attention(), FeedBlock()])),
            {"Attention": 2, "FeedBlock": 2},
            id="attention and feed-forward in turn",
        ),
        pytest.param(
            lambda: Chain(b1=FeedBlock(), b2=FeedBlock(), c=Reduction()), {"FeedBlock": 2}, id="blocks as attributes"
        ),
        pytest.param(
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(WIDTH, 2, 4, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
            ),
            {"TransformerEncoderLayer": 2},
            id="torch's own encoder",
        ),
    ],
)
def test_blocks_are_found_and_gradients_stay(make: Callable[[], nn.Module], expected: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = make()
    assert Counter(wrapped(model).values()) == expected
    inputs = values()[None] if isinstance(model, nn.TransformerEncoder) else values()
    report = verify(model, inputs, levels=("run", "recompute", "set", "values", "state"))
    assert [str(fault) for mode in report.modes for fault in mode.faults] == []


def test_what_runs_side_by_side_is_left_out() -> None:
    class Expert(FeedBlock):
        pass

    model = Chain(body=blocks(), experts=blocks(2, OtherBlock), others=blocks(2, Expert))
    assert set(wrapped(model).values()) == {"FeedBlock"}


def test_what_holds_little_is_left_out_unless_its_owner_checkpoints_it() -> None:
    wide = nn.Linear(WIDTH, 600)
    beside = Chain(body=blocks(2), few=nn.Sequential(OtherBlock(), OtherBlock()), wide=wide)
    with pytest.raises(SurgeryError, match=r"what its lists repeat \(FeedBlock, OtherBlock\) holds less than 5%"):
        wrap_blocks(beside)
    owned = Chain(body=FlaggedStage(2), wide=wide)
    assert wrapped(owned) == {"body.blocks.0": "FeedBlock", "body.blocks.1": "FeedBlock"}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Linear(2, 2), "it holds no two modules of one class side by side"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), r"single layers \(Linear, ReLU\)"),
        (Chain(body=nn.ModuleList([FeedBlock(), OtherBlock()])), r"no class comes twice .* \(FeedBlock, OtherBlock\)"),
    ],
)
def test_the_true_reason_is_named_where_there_are_none(model: nn.Module, reason: str) -> None:
    with pytest.raises(SurgeryError, match=reason):
        wrap_blocks(model)


def test_a_flag_that_a_method_of_the_forward_reads_is_off_and_comes_back() -> None:
    model = SwitchableChain(stage=FlaggedStage(), last=nn.Linear(WIDTH, WIDTH))
    model.set_grad_checkpointing()
    surgery = wrap_blocks(model)
    assert not stage_of(model).grad_checkpointing
    report = verify(model, values(), modes="non_reentrant", levels=("run", "recompute", "values"))
    assert report.modes[0].ok
    surgery.undo()
    assert stage_of(model).grad_checkpointing
    assert "set_grad_checkpointing" not in vars(model)


def is_off(surgery: Surgery) -> bool:
    return surgery.checkpointing is None


def stage_of(model: nn.Module) -> FlaggedStage:
    stage = model.get_submodule("stage")
    assert isinstance(stage, FlaggedStage)
    return stage


def test_timms_switch_switches_the_surgery() -> None:
    model = SwitchableChain(stage=FlaggedStage())
    surgery = wrap_blocks(model, use_reentrant=True)
    model.set_grad_checkpointing(False)
    assert is_off(surgery)
    model.set_grad_checkpointing(impl="inline")  # type: ignore[call-arg]  # as open_clip's
    assert not is_off(surgery)
    assert not stage_of(model).grad_checkpointing
    assert surgery.options.use_reentrant


def is_on(model: nn.Module) -> bool:
    middle = model.get_submodule("middle")
    assert isinstance(middle, SelfCheckpointing)
    return middle.gradient_checkpointing


def test_what_has_no_block_of_the_surgery_stays_with_the_librarys_switch() -> None:
    model = Library()
    model.enable_gradient_checkpointing()
    surgery = wrap_blocks(model)
    assert is_on(model), "it was switched off and nothing was put in its place"
    assert str(surgery).endswith("left to their own switch: 1 SelfCheckpointing")
    model.disable_gradient_checkpointing()
    assert not is_on(model)
    assert is_off(surgery)
    model.enable_gradient_checkpointing()
    assert is_on(model)
    assert not is_off(surgery)
    model(values()).sum().backward()
    surgery.undo()
    assert is_on(model)


def test_blocks_in_torchs_wrapper_are_left_to_it() -> None:
    model = Chain(first=blocks(), second=blocks(2))
    model.second = nn.ModuleList(checkpoint_wrapper(block) for block in model.get_submodule("second").children())
    surgery = wrap_blocks(model)
    assert "checkpointed by torch's" in str(surgery)
    assert [stack.wanted for stack in surgery.stacks] == [True, False]
    every = Chain(body=nn.ModuleList(checkpoint_wrapper(FeedBlock()) for _ in range(2)))
    with pytest.raises(SurgeryError, match="torch's checkpoint_wrapper already"):
        wrap_blocks(every)


def test_stacks_that_differ_in_numbers_share_a_line() -> None:
    lines = str(wrap_blocks(Chain(stages=blocks(2, Stage)))).splitlines()
    assert [line.split()[:2] for line in lines[3:]] == [["stages.*.blocks", "FeedBlock"]]


class Sublayers(nn.Module):
    """A block made of different parts in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([FeedBlock(), Stage(1)])


def named(whole: nn.Module, *kinds: type[nn.Module]) -> dict[str, nn.Module]:
    return {name: module for name, module in whole.named_modules() if type(module) in kinds}


def test_a_stage_gives_way_to_its_blocks_where_they_keep_much_less() -> None:
    whole = nn.ModuleList([Stage(6), Stage(6)])
    assert chosen_level(named(whole, Stage, FeedBlock)) == tuple(named(whole, FeedBlock))


def test_a_block_of_two_parts_stays_a_block() -> None:
    whole = nn.ModuleList([Sublayers(), Sublayers()])
    assert chosen_level(named(whole, Sublayers, FeedBlock, Stage)) == ("0", "1")


def test_the_largest_stage_decides_for_its_class() -> None:
    whole = nn.ModuleList([Stage(2), Stage(6)])
    assert chosen_level(named(nn.ModuleList([Stage(2)]), Stage, FeedBlock)) == ("0",)
    assert chosen_level(named(whole, Stage, FeedBlock)) == tuple(named(whole, FeedBlock))


def test_a_stage_without_blocks_stays_where_others_of_its_class_give_way() -> None:
    modules = named(nn.ModuleList([Stage(6), Stage(6)]), Stage, FeedBlock)
    few = {name: module for name, module in modules.items() if not name.startswith("0.")}
    assert chosen_level(few) == ("0", *(name for name in few if name.startswith("1.")))
