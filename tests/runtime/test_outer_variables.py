"""What the methods of a class can write outside of its instances is found; what libraries hold is not."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")

from torch import nn

from ckpt_surgery.runtime.contents import Contents
from ckpt_surgery.runtime.outer_variables import outer_variables

pytestmark = [pytest.mark.torch]

LOG: list[int] = []
UNUSED: list[int] = []
NUMBERS = itertools.count()


def made() -> type[nn.Module]:
    count, seen = 0, []

    class Block(nn.Module):
        calls = 0
        constant = 3
        shared: ClassVar[list[int]] = []

        def forward(self, value: Any) -> Any:
            nonlocal count
            count += 1
            seen.append(value)
            LOG.append(next(NUMBERS))
            Block.calls += 1
            self.shared.append(value)
            return count

    return Block


def test_class_attributes_closures_and_containers_of_the_file_are_found() -> None:
    kind = made()
    names = {name for name, _ in outer_variables(kind)}
    assert {"count", "seen", "LOG", "NUMBERS", "shared", "Block"} <= names
    assert "UNUSED" not in names


def test_all_of_it_comes_back_and_goes_again() -> None:
    kind: Any = made()
    block = kind()
    block("a")
    contents = Contents(outer_variables(kind))
    block("b")
    logged = list(LOG)
    with contents.restored():
        assert (kind.calls, kind.shared, LOG) == (1, ["a"], logged[:-1])
        assert block("c") == 2
    assert (kind.calls, kind.shared, LOG) == (2, ["a", "b"], logged)
    assert block("d") == 3


def test_layers_of_torch_and_transformers_have_none() -> None:
    assert list(outer_variables(nn.Linear)) == []
    transformers = pytest.importorskip("transformers")
    kind = transformers.models.llama.modeling_llama.LlamaDecoderLayer
    assert list(outer_variables(kind)) == []
