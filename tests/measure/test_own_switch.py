"""Remote code that switches its inline branches itself, or grows its stack by `+=`: before and after `apply`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import apply, check
from ckpt_surgery.codemods.finding import Applicability
from tests.measure.test_outdated_switch import INLINE, LAYERS, loaded

pytestmark = [pytest.mark.both]

START = INLINE.index("    def _set_gradient_checkpointing")
CLAIM = "    supports_gradient_checkpointing = True\n"
BY_TRANSFORMERS = INLINE[:START] + INLINE[INLINE.index("class FooModel(") :]
OWN = BY_TRANSFORMERS.replace("self.gradient_checkpointing = False", "self.gradient_checkpointing = True")
UNCLAIMED = BY_TRANSFORMERS.replace(CLAIM, "    pass\n")


def runs(file: Path, *, by_hand: bool = False) -> int:
    """Count the three blocks' runs in a step: three, and three more if they are recomputed."""
    model = loaded(file)
    if by_hand:
        model.gradient_checkpointing = True
    calls = []
    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(lambda *_: calls.append(1))
    model(torch.ones(2, 5, 4, dtype=torch.float64)).sum().backward()
    return len(calls)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "modeling_foo.py"


@pytest.mark.parametrize(("text", "by_hand"), [(OWN, False), (UNCLAIMED, True)], ids=["always on", "set by hand"])
@pytest.mark.parametrize("unsafe", [False, True])
def test_checkpointing_that_the_model_switches_on_is_not_lost(
    file: Path, text: str, by_hand: bool, unsafe: bool
) -> None:
    file.write_text(text, encoding="utf-8")
    assert [finding.applicability for finding in check([file]).findings] == [Applicability.INFO]
    assert runs(file, by_hand=by_hand) == 6
    apply([file], unsafe=unsafe)
    assert runs(file, by_hand=by_hand) == 6


@pytest.mark.parametrize(("text", "by_hand"), [(OWN, False), (UNCLAIMED, True)], ids=["always on", "set by hand"])
def test_a_layer_would_lose_it(file: Path, text: str, by_hand: bool) -> None:
    layers = LAYERS[: LAYERS.index("    def _set_grad")] + LAYERS[LAYERS.index("class FooModel(") :]
    switch = "self.gradient_checkpointing = True" if text is OWN else "self.gradient_checkpointing = False"
    file.write_text(layers.replace("self.gradient_checkpointing = False", switch), encoding="utf-8")
    assert runs(file, by_hand=by_hand) == 3


STACK = "self.layers = nn.ModuleList([FooLayer() for _ in range(3)])"
GROWN = """blocks = []
        for _ in range(3):
            blocks += [FooLayer()]
        self.layers = nn.ModuleList(blocks)"""
CHANGES = {
    "class FooLayer(GradientCheckpointingLayer)": "class FooLayer(nn.Module)",
    "from transformers.modeling_layers import GradientCheckpointingLayer\n": "",
    "def forward(self, hidden_states):\n": "def forward(self, hidden_states, encoder_hidden_states):\n",
    "return hidden_states + self": "return hidden_states + encoder_hidden_states + self",
    "layer(hidden_states)": "layer(hidden_states, encoder_hidden_states=memory)",
    "hidden_states = self.first(values)": "hidden_states = memory = self.first(values)",
    STACK: GROWN,
}


def plain() -> str:
    """Make plain blocks with a gradient argument by keyword."""
    text = LAYERS[: LAYERS.index("    def _set_grad")] + LAYERS[LAYERS.index("class FooModel(") :]
    attention, rest = text[: text.index("class FooLayer")], text[text.index("class FooLayer") :]
    for old, new in CHANGES.items():
        assert old in attention + rest
        attention = attention.replace(old, new) if old.startswith("from") else attention
        rest = rest.replace(old, new)
    return attention + rest


def gradient(file: Path, *, checkpointed: bool) -> torch.Tensor:
    model = loaded(file)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    model(torch.ones(2, 5, 4, dtype=torch.float64)).sum().backward()
    gradient = model.first.weight.grad
    assert isinstance(gradient, torch.Tensor)
    return gradient


def test_the_blocks_of_a_grown_list_are_trained_right_after_the_repair(file: Path) -> None:
    file.write_text(plain(), encoding="utf-8")
    assert [finding.code for finding in check([file]).findings] == ["CKPT001", "CKPT003"]
    before = gradient(file, checkpointed=False)
    apply([file])
    torch.testing.assert_close(gradient(file, checkpointed=True), before)


def test_the_class_alone_would_lose_a_gradient(file: Path) -> None:
    file.write_text(plain(), encoding="utf-8")
    before = gradient(file, checkpointed=False)
    apply([file], select=["CKPT001"])
    with pytest.raises((AssertionError, RuntimeError)):
        torch.testing.assert_close(gradient(file, checkpointed=True), before)
