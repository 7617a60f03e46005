"""Other libraries replace a block's forward before or after a surgery, and the block stays checkpointed.

Each way runs beside transformers' own checkpointing, which silently stops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from accelerate.hooks import (  # type: ignore[import-untyped]
    ModelHook,
    add_hook_to_module,
    remove_hook_from_module,
)
from torch import Tensor, nn

from ckpt_surgery import wrap_blocks
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.measure import toys
from tests.measure.toys import PlainLayer, SureLayer, model_of
from tests.zoo.surgery_toys import KEPT, ONCE, Step, differences, step
from tests.zoo.tiny_models import layers_of, llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

RELEASE = int(transformers.__version__.partition(".")[0])


class ReplacedLayer(SureLayer):
    """A layer for tests that replace a class's forward, which leaves other classes alone."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states)


class ReplacedPlainLayer(PlainLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states)


KINDS = [ReplacedLayer, ReplacedPlainLayer]


def fused(self: Any, hidden_states: Tensor) -> Tensor:
    """Compute other values, which show which forward has run."""
    return torch.sin(torch.exp(torch.tanh(self.linear(hidden_states)))) * 0.5


def on_the_class(model: Any) -> None:
    for kind in KINDS:
        kind.forward = fused


def on_the_instance(model: Any) -> None:
    for block in model.layers:
        block.forward = MethodType(fused, block)


def by_a_wrapper_that_tells(model: Any) -> None:
    for block in model.layers:
        block.forward = _halved(block.forward, functools.wraps(block.forward))


def by_a_closure(model: Any) -> None:
    for block in model.layers:
        block.forward = _halved(block.forward, lambda function: function)


def _halved(before: Callable[..., Any], decorate: Callable[..., Any]) -> Callable[..., Any]:
    @decorate
    def forward(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs) * 0.5

    return forward  # type: ignore[no-any-return]


class Halving(ModelHook):  # type: ignore[misc]
    def post_forward(self, module: nn.Module, output: Any) -> Any:
        return output * 0.5


def by_a_hook_of_accelerate(model: Any) -> None:
    for block in model.layers:
        add_hook_to_module(block, Halving())


def by_a_wrapper_that_runs_nothing(model: Any) -> None:
    """Replace each forward by a wrapper that names the original and does not call it."""
    for block in model.layers:
        block.forward = functools.wraps(block.forward)(functools.partial(fused, block))


WAYS = [
    by_a_wrapper_that_runs_nothing,
    on_the_class,
    on_the_instance,
    by_a_wrapper_that_tells,
    by_a_closure,
    by_a_hook_of_accelerate,
]
every_way = pytest.mark.parametrize("replace", WAYS)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def classes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        monkeypatch.setattr(kind, "forward", vars(kind)["forward"])


def made(kind: Callable[[], nn.Module]) -> toys.Model:
    return model_of(kind, kind, kind, by_keyword=True)


def forwards(model: Any) -> list[Any]:
    """List what is set as forward on the layers themselves."""
    return [vars(block).get("forward") for block in model.layers]


def expected(kind: Callable[[], nn.Module]) -> Step:
    """Compute what a model with any of the replacements does, without checkpointing."""
    model = made(kind)
    on_the_instance(model)
    return step(model)


@every_way
@every_kind
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_replaced_forward_is_checkpointed(
    kind: Callable[[], nn.Module], replace: Callable[[Any], None], after: bool
) -> None:
    wanted, model = expected(kind), made(kind)
    if not after:
        replace(model)
    wrap_blocks(model)
    if after:
        step(model)  # what was learned of another forward must not get in the way
        replace(model)
    for _ in range(2):
        record = step(model)
        assert differences(record, wanted) == []
        assert set(record.entries.values()) == {ONCE}


@pytest.mark.parametrize("replace", WAYS)
def test_transformers_own_checkpointing_stops_without_a_word_in_some_ways(replace: Callable[[Any], None]) -> None:
    model = made(ReplacedLayer)
    switch_checkpointing(model, "non_reentrant")
    replace(model)
    record = step(model)
    assert differences(record, expected(ReplacedLayer)) == []
    stopped = RELEASE == 5 and replace in (on_the_class, on_the_instance, by_a_wrapper_that_runs_nothing)
    assert set(record.entries.values()) == {KEPT if stopped else ONCE}


@every_way
@pytest.mark.parametrize("moment", ["before", "after", "after, unseen"])
@every_kind
def test_undo_leaves_their_forward(kind: Callable[[], nn.Module], replace: Callable[[Any], None], moment: str) -> None:
    model = made(kind)
    if moment == "before":
        replace(model)
        theirs = forwards(model)
    surgery = wrap_blocks(model)
    if moment != "before":
        replace(model)
        theirs = forwards(model)
    if moment != "after, unseen":
        step(model)
    surgery.undo()
    assert forwards(model) == ([None] * 3 if replace is on_the_class else theirs)
    record = step(model)
    assert differences(record, expected(kind)) == []
    assert set(record.entries.values()) == {KEPT}


def test_accelerates_hooks_stay_outside_and_come_off_in_any_order() -> None:
    class Counting(Halving):
        calls = 0

        def post_forward(self, module: nn.Module, output: Any) -> Any:
            Counting.calls += 1
            return super().post_forward(module, output)

    for undone_first in (False, True):
        model, Counting.calls = made(ReplacedLayer), 0
        surgery = wrap_blocks(model)
        for block in model.layers:
            add_hook_to_module(block, Counting())
        assert set(step(model).entries.values()) == {ONCE}
        assert Counting.calls == 3
        if undone_first:
            surgery.undo()
        for block in model.layers:
            remove_hook_from_module(block)
        assert differences(step(model), step(made(ReplacedLayer))) == []
        if not undone_first:
            assert set(step(model).entries.values()) == {ONCE}
            surgery.undo()
        assert set(step(model).entries.values()) == {KEPT}
        assert differences(step(model), step(made(ReplacedLayer))) == []
        assert set(step_wrapped(model).entries.values()) == {ONCE}


def step_wrapped(model: nn.Module) -> Step:
    wrap_blocks(model)
    return step(model)


def test_a_block_that_is_run_from_elsewhere_is_looked_after_too() -> None:
    class Outside(toys.Model):
        tower: Any

        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.tower = nn.Module()  # nobody calls it
            self.tower.layers = nn.ModuleList(layers)

        def run_layers(self, hidden_states: Tensor) -> Tensor:
            for layer in self.tower.layers:
                hidden_states = layer(hidden_states)
            return hidden_states

    model: Any = model_of(ReplacedLayer, ReplacedLayer, whole=Outside)
    wrap_blocks(model)
    layers = dict(model.tower.layers.named_children())
    for layer in layers.values():
        layer.forward = MethodType(fused, layer)
    assert set(step(model, blocks=layers).entries.values()) == {ONCE}


@pytest.mark.parametrize("replace", [on_the_instance, by_a_closure])
def test_a_second_call_and_a_switch_keep_a_later_forward(replace: Callable[[Any], None]) -> None:
    model = made(ReplacedLayer)
    wrap_blocks(model)
    replace(model)
    surgery = wrap_blocks(model, every_n=1)
    record = step(model)
    assert differences(record, expected(ReplacedLayer)) == []
    assert set(record.entries.values()) == {ONCE}
    for switch_off in (functools.partial(surgery.disable, model), surgery.undo):
        switch_off()
        record = step(model)
        assert set(record.entries.values()) == {KEPT}
        assert differences(record, expected(ReplacedLayer)) == []


def test_what_fused_kernel_libraries_do_to_a_llama_survives() -> None:
    def multiplied(self: Any, hidden: Tensor) -> Tensor:
        result: Tensor = self.down_proj(self.act_fn(self.gate_proj(hidden)) * 2)
        return result

    model, plain = llama(), llama()
    wrap_blocks(model)
    for module in (model, plain):
        for layer in module.model.layers:
            layer.mlp.forward = MethodType(multiplied, layer.mlp)
            layer.forward = MethodType(type(layer).forward, layer)
    record = step(model, tokens(), blocks=layers_of(model))
    assert differences(record, step(plain, tokens(), blocks=layers_of(plain))) == []
    assert differences(record, step(llama(), tokens(), blocks=layers_of(llama()))) != []
    assert set(record.entries.values()) == {ONCE}
