"""Keyword arguments that a model computes with its own modules, before and after `apply`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery import apply, check
from tests.measure.test_outdated_switch import LAYERS, loaded

pytestmark = [pytest.mark.both]

TAKES = "    def forward(self, hidden_states):\n        return hidden_states + self.self_attn(hidden_states)"
SCALED = """\
    def forward(self, hidden_states, scale=None):
        return hidden_states + scale * self.self_attn(hidden_states)"""
FIRST = "        self.first = nn.Linear(4, 4)\n"
MADE = {
    "a parameter": ("nn.Parameter(torch.ones(4))", "self.gamma.exp()"),
    "a module": ("nn.Linear(4, 4)", "torch.sigmoid(self.gamma(hidden_states))"),
}


def model(made: str, scale: str) -> str:
    text = LAYERS[: LAYERS.index("    def _set_grad")] + LAYERS[LAYERS.index("class FooModel(") :]
    text = text.replace(TAKES, SCALED).replace(FIRST, f"{FIRST}        self.gamma = {made}\n")
    looped = "        for layer in self.layers:\n            hidden_states = layer(hidden_states"
    return text.replace(looped, f"        scale = {scale}\n{looped}, scale=scale")


def gradients(file: Path, mode: bool | None) -> list[torch.Tensor | None]:
    """Return the gradients of the scale's parameters in a mode of checkpointing, or without."""
    made = loaded(file)
    if mode is not None:
        made.gradient_checkpointing_enable({"use_reentrant": mode})
    made(torch.linspace(-1, 1, 40, dtype=torch.float64).view(2, 5, 4)).pow(2).sum().backward()
    return [parameter.grad for name, parameter in made.named_parameters() if "gamma" in name]


@pytest.mark.parametrize("name", MADE)
def test_the_gradient_is_there_after_the_repair(tmp_path: Path, name: str) -> None:
    file = tmp_path / "modeling_foo.py"
    file.write_text(model(*MADE[name]), encoding="utf-8")
    assert [(found.code, found.applicability.value) for found in check([file]).findings] == [("CKPT003", "safe")]
    plain = gradients(file, None)
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        torch.testing.assert_close(gradients(file, True), plain)
    apply([file])
    for mode in (True, False):
        torch.testing.assert_close(gradients(file, mode), plain)
