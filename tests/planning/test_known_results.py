"""Operators with remembered results return what they would have computed."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

pytest.importorskip("transformers")

import torch

from ckpt_surgery.planning.explain import metered
from ckpt_surgery.planning.known_results import KnownResults
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.tiny import model_classes, tiny_model

pytestmark = [pytest.mark.torch, pytest.mark.both]


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "T5ForConditionalGeneration", "ViTForImageClassification", "MixtralForCausalLM"]
)
def test_a_step_is_the_same_without_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = model_classes()[name]
    tiny = tiny_model(entry.load(), entry.config_class(entry.model_type))
    shapes = ShapesOnly()
    model = shapes_of(tiny.model.train(), shapes, shapes.copies)
    found: list[bool] = []
    find = KnownResults.find

    def noted(known: KnownResults, key: Hashable, source: torch.Tensor) -> torch.Tensor | None:
        result = find(known, key, source)
        found.append(result is not None)
        return result

    monkeypatch.setattr(KnownResults, "find", noted)
    with_them, _ = metered(model, tiny.inputs, shapes)
    monkeypatch.setattr(KnownResults, "find", lambda *args: None)
    without, _ = metered(model, tiny.inputs, shapes)
    assert sum(found) > len(found) / 4
    assert with_them.is_same_step(without)
