"""Attention and dropout on CUDA: no matrix of weights where a kernel avoids it, and masks of bools.

The last tests compare whole steps with published figures.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ckpt_surgery.planning.allocations import AllocationKind
from ckpt_surgery.planning.cuda_operators import CudaOperators
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.step_meter import run_metered
from tests.planning.test_target import config, model_of

pytestmark = pytest.mark.torch
LENGTH, HEADS = 96, 4


class Attends(nn.Module):
    """Attention over its arguments, with a weight so that there is a gradient."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        weight = self.weight.to(query.dtype)
        return scaled_dot_product_attention(query * weight, key, value, mask, **self.options).float().sum()


def kept(
    query: int = 64, value: int = 64, heads: int = HEADS, mask: Tensor | None = None, **options: Any
) -> tuple[Counter[str], int]:
    """Return the CUDA operators that keep something of a step, and the bytes."""
    dtype = options.pop("dtype", torch.bfloat16)
    shapes = ShapesOnly()
    model = shapes_of(Attends(**options), shapes)
    sizes = ((HEADS, query), (heads, query), (heads, value))
    tensors = [
        shapes.without_data(torch.zeros(2, count, LENGTH, width, dtype=dtype)).requires_grad_()
        for count, width in sizes
    ]
    with shapes, CudaOperators():
        step = run_metered(model, ((*tensors, mask), {}), lambda output: output)
    made = [one for one in step.allocations if one.kind is AllocationKind.KEPT]
    return Counter(one.keeper for one in made), sum(one.bytes for one in made)


def test_flash_attention_keeps_no_matrix_even_with_dropout_and_fewer_keys() -> None:
    keepers, total = kept(heads=2, dropout_p=0.1, is_causal=True, enable_gqa=True)
    assert keepers["aten._scaled_dot_product_flash_attention"] > 0
    query = 2 * HEADS * LENGTH * 64 * 2
    assert total == pytest.approx(2 * query + 2 * HEADS * LENGTH * 4, rel=0.01)  # query, result, sums


@pytest.mark.parametrize(("heads", "expanded"), [(HEADS, 0), (2, 2)], ids=["as many keys", "fewer keys"])
def test_the_backward_of_flash_attention_holds_its_workspace(heads: int, expanded: int) -> None:
    shapes = ShapesOnly()
    model = shapes_of(Attends(is_causal=True, enable_gqa=True), shapes)
    given = [
        shapes.without_data(torch.zeros(2, n, 100, 40, dtype=torch.bfloat16)).requires_grad_()
        for n in (HEADS, heads, heads)
    ]
    with shapes, CudaOperators():
        step = run_metered(model, ((*given, None), {}), lambda output: output)
    sums, rows = (2, 128, HEADS, 64), (2, HEADS, 128)
    news = [one for one in step.allocations if one.operator == "aten.new_empty" and one.bytes]
    made = [(one.dtype, one.shape) for one in news]
    assert [(kind, shape) for kind, shape in made if kind == "float32"] == [("float32", sums), ("float32", rows)]
    assert [shape for kind, shape in made if kind != "float32"] == [(2, 100, HEADS, 40)] * expanded


def test_a_width_that_flash_attention_does_not_take_is_padded() -> None:
    _, narrow = kept(60, 60)
    _, wide = kept(64, 64)
    assert narrow - wide == 2 * 2 * HEADS * LENGTH * 64 * 2  # the padded keys and values are the step's own


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("a mask", {"mask": torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)}),
        ("values of another width", {"value": 32}),
        ("single precision", {"dtype": torch.float32}),
        ("dropout and a mask", {"mask": torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool), "dropout_p": 0.1}),
    ],
)
def test_memory_efficient_attention_keeps_no_matrix(case: str, options: dict[str, Any]) -> None:
    keepers, total = kept(**options)
    assert keepers["aten._scaled_dot_product_efficient_attention"] > 0, case
    assert total < 2 * HEADS * LENGTH * (64 * 4 * 3 + 2 * LENGTH), case


def test_what_no_kernel_takes_keeps_the_matrix() -> None:
    keepers, total = kept(value=30)
    assert "aten._scaled_dot_product_efficient_attention" not in keepers
    assert total > 2 * HEADS * LENGTH * LENGTH * 4


def test_dropout_keeps_a_mask_of_bools() -> None:
    def bytes_kept(rate: float) -> int:
        shapes = ShapesOnly()
        model = shapes_of(nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate)), shapes).train()
        with shapes, CudaOperators():
            return run_metered(model, ((torch.zeros(4, 8),), {}), torch.Tensor.sum).kept_bytes

    assert bytes_kept(0.5) == 4 * 8
    assert bytes_kept(0.0) == 0


def test_offload_frees_the_inputs_of_blocks(tmp_path: Path) -> None:
    # Transformers says that offload frees layers x tokens x width x 2 bytes: 3,584 MiB at 28 x 32,768 x 2,048.
    # Here the input of the last block stays, and those of the two before it may still be under way.
    sizes = {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_hidden_layers": 28}
    name = config(tmp_path, **sizes, max_position_embeddings=32768)
    kept = []
    for offload in (False, True):
        model = model_of(name, tokens=32768, batch=1)
        model.wrap(offload=offload)
        kept.append(model.explained().kept_bytes)
    assert (kept[0] - kept[1]) / 2**20 == 3584 * 25 / 28
