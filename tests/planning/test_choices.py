"""A plan's choices, as Python that finds the same modules."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ckpt_surgery.planning.choices import PlanChoice

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.0.mlp", "a.1.mlp", "b.0.mlp"], "[block.mlp for block in model.a] + [block.mlp for block in model.b]"),
        (["a.1.mlp"], "[model.a[i].mlp for i in (1,)]"),
        (["a.0.deep.0.mlp"], "[model.get_submodule(name) for name in ['a.0.deep.0.mlp']]"),
    ],
)
def test_a_list_of_modules_as_python(names: list[str], expected: str) -> None:
    choice = PlanChoice(tiled=tuple(names), shard_size=7)
    imports, call = choice.code.split("\n\n")
    assert (imports, call) == ("from ckpt_surgery.distributed import tile_mlp", f"tile_mlp({expected}, shard_size=7)")
