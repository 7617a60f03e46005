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


def test_results_are_told_apart_by_all_that_decides_them() -> None:
    shapes = ShapesOnly()
    with shapes:
        rows = shapes.without_data(torch.zeros(4, 6))
        for _ in range(2):
            results = [
                rows[:, :3],
                rows[:, 3:],
                rows.t(),
                rows + 1,
                rows.double(),
                rows.t() + 1,
                rows.bool(),
                rows * 1.0,
            ]
    assert [(tuple(each.shape), each.stride(), each.storage_offset(), each.dtype) for each in results] == [
        ((4, 3), (6, 1), 0, torch.float32),
        ((4, 3), (6, 1), 3, torch.float32),
        ((6, 4), (1, 6), 0, torch.float32),
        ((4, 6), (6, 1), 0, torch.float32),
        ((4, 6), (6, 1), 0, torch.float64),
        ((6, 4), (1, 6), 0, torch.float32),
        ((4, 6), (6, 1), 0, torch.bool),
        ((4, 6), (6, 1), 0, torch.float32),
    ]
    storages = [each.untyped_storage()._cdata for each in (rows, *results)]
    assert len(set(storages[:4])) == 1
    assert len(set(storages)) == 6
