"""The blocks of a live model: its checkpointing layers, and plain stacks that should be some."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn

from ckpt_surgery.runtime.blocks.discovery import find_blocks, is_layer
from tests.measure.toys import Layer, Model, PlainLayer, SharingLayer, SureLayer, model_of

pytestmark = [pytest.mark.both, pytest.mark.torch]

WIDTH = 4


class Attention(nn.Linear):
    """A layer whose name says that it mixes positions."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)


class MixingLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()


class FeedLayer(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)


class DecoderHead(FeedLayer):
    pass


class DownProjector(nn.Conv1d):
    pass


def model(weight: int = 0, **parts: nn.Module) -> nn.Module:
    """Build a module of these parts and a projection to that many numbers."""
    whole = nn.Module()
    for name, part in parts.items():
        whole.add_module(name, part)
    whole.projection = nn.Linear(max(weight, 1), 1, bias=False)
    return whole


def stack(kind: Callable[[], nn.Module], count: int = 2) -> nn.ModuleList:
    return nn.ModuleList(kind() for _ in range(count))


def found(whole: nn.Module) -> dict[str, str]:
    return {block.name: block.kind for block in find_blocks(whole)}


def test_layers_are_found_wherever_they_are_with_their_stacks() -> None:
    whole = model_of(Layer, SureLayer)
    whole.extra = Layer()
    assert [(b.name, b.kind, b.stack, b.inside) for b in find_blocks(whole)] == [
        ("layers.0", "layer", "layers", ""),
        ("layers.1", "layer", "layers", ""),
        ("extra", "layer", "", ""),
    ]
    assert [b.module for b in find_blocks(whole)] == [*whole.layers, whole.extra]


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(lambda: stack(MixingLayer), id="a list"),
        pytest.param(lambda: nn.Sequential(MixingLayer(), MixingLayer()), id="a sequence"),
        pytest.param(lambda: nn.ModuleDict({"0": MixingLayer(), "1": MixingLayer()}), id="a dictionary"),
    ],
)
def test_a_stack_is_any_container(container: Callable[[], nn.Module]) -> None:
    assert found(model(blocks=container())) == {"blocks.0": "plain", "blocks.1": "plain"}


def test_a_stack_of_stacks_holds_the_blocks_of_all() -> None:
    whole = model(stages=nn.ModuleList([stack(MixingLayer), stack(MixingLayer, 1)]))
    blocks = find_blocks(whole)
    assert [block.name for block in blocks] == ["stages.0.0", "stages.0.1", "stages.1.0"]
    assert {block.stack for block in blocks} == {"stages"}


def test_a_stack_inside_a_plain_block_is_part_of_it() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()
            self.inner = stack(MixingLayer)

    assert list(found(model(blocks=stack(Outer)))) == ["blocks.0", "blocks.1"]


def test_plain_stacks_inside_layers_and_around_them_are_none() -> None:
    class Holding(SureLayer):
        def __init__(self) -> None:
            super().__init__()
            self.experts = stack(MixingLayer)

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()
            self.layer = Layer()

    assert found(model(blocks=stack(Holding))) == {"blocks.0": "layer", "blocks.1": "layer"}
    assert set(found(model(blocks=stack(Around)))) == {"blocks.0.layer", "blocks.1.layer"}


def test_blocks_that_mix_no_positions_have_to_hold_half_of_the_parameters() -> None:
    own = 2 * (WIDTH * WIDTH + WIDTH)
    for weight, expected in ((own, 2), (own + 1, 0)):
        assert len(find_blocks(model(weight, blocks=stack(FeedLayer)))) == expected
    assert len(find_blocks(model(own + 1, blocks=stack(MixingLayer)))) == 2


def test_a_mere_trifle_is_no_stack() -> None:
    own = 2 * (WIDTH * WIDTH + WIDTH)
    assert len(find_blocks(model(19 * own, blocks=stack(MixingLayer)))) == 2
    assert len(find_blocks(model(19 * own + 1, blocks=stack(MixingLayer)))) == 0


def test_embeddings_do_not_count() -> None:
    whole = model(words=nn.Embedding(10_000, WIDTH), blocks=stack(FeedLayer))
    assert len(find_blocks(whole)) == 2


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(DecoderHead, id="heads"),
        pytest.param(Attention, id="attentions"),
        pytest.param(lambda: nn.Linear(WIDTH, WIDTH), id="projections"),
        pytest.param(lambda: nn.Conv1d(WIDTH, WIDTH, 1), id="convolutions"),
    ],
)
def test_pieces_of_blocks_are_no_blocks(kind: Callable[[], nn.Module]) -> None:
    assert found(model(parts=stack(kind))) == {}


def test_parts_of_several_kinds_are_blocks_only_where_they_mix_positions() -> None:
    whole = model(parts=nn.ModuleList([FeedLayer(), MixingLayer(), DownProjector(WIDTH, WIDTH, 1), MixingLayer()]))
    assert set(found(whole)) == {"parts.1", "parts.3"}
    assert found(model(parts=nn.ModuleList([FeedLayer(), MixingLayer()]))) == {}


def test_a_shared_module_is_found_once_under_its_first_name() -> None:
    layer, plain = Layer(), MixingLayer()
    whole = model(first=nn.ModuleList([layer, Layer()]), second=nn.ModuleList([layer]), late=stack(MixingLayer))
    assert [name for name, kind in found(whole).items() if kind == "layer"] == ["first.0", "first.1"]
    shared = model(first=nn.ModuleList([plain, MixingLayer()]), second=nn.ModuleList([plain, MixingLayer()]))
    assert list(found(shared)) == ["first.0", "first.1", "second.1"]
    assert set(found(model_of(lambda: SharingLayer(plain), Layer))) == {"layers.0", "layers.1"}


def test_the_tower_around_a_stack_is_the_nearest_pretrained_model() -> None:
    tower = model_of(PlainLayer, PlainLayer, PlainLayer)
    beside = 3 * sum(p.numel() for p in tower.parameters())
    assert set(found(model(beside, tower=tower))) == {f"tower.layers.{i}" for i in range(3)}
    assert found(model(beside, tower=tower.layers)) == {}  # the same stack without a tower


def test_a_tower_that_claims_no_support_has_no_plain_blocks() -> None:
    tower = model_of(PlainLayer, PlainLayer)
    assert len(find_blocks(model(tower=tower))) == 2
    tower.supports_gradient_checkpointing = False
    assert find_blocks(model(tower=tower)) == ()


def test_a_layer_is_known_by_its_base_whatever_its_release() -> None:
    assert is_layer(Layer())
    assert not is_layer(PlainLayer())
    foreign = type("GradientCheckpointingLayer", (nn.Module,), {})
    assert is_layer(type("Elsewhere", (foreign,), {})())


def test_a_model_without_blocks_has_none() -> None:
    assert find_blocks(nn.Linear(2, 2)) == ()
    assert find_blocks(Model()) == ()
