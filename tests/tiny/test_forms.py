"""Inputs as families' files write them: the tensor that each text makes."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.tiny import tiny_config
from ckpt_surgery.tiny.arguments import ForwardArguments
from ckpt_surgery.tiny.forms import _CHANGES, _FORMS, make_input

pytestmark = pytest.mark.both

FORMS = sorted({form for own in family_tables().inputs.values() for form in own.values() if isinstance(form, str)})


@pytest.fixture(scope="module")
def arguments() -> ForwardArguments:
    model = transformers.BertModel(tiny_config(transformers.BertConfig))
    result = ForwardArguments(model, 2, 16, 0)
    result.values["input_ids"] = torch.arange(32).reshape(2, 16)
    return result


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("zeros(batch, length + 1)", torch.zeros(2, 17, dtype=torch.long)),
        ("trues(batch, hidden_size // 32 * 2)", torch.ones(2, 4, dtype=torch.bool)),
        ("full(batch, value=-3)", torch.tensor([-3, -3])),
        ("rows([1, num_hidden_layers])", torch.tensor([[1, 2], [1, 2]])),
        ("counted(batch, 3)", torch.tensor([[0, 1, 2], [0, 1, 2]])),
        ("marked(2)", torch.tensor([[0, 1, 1, *[0] * 13]] * 2)),
        ("places(2)", torch.tensor([[[0, 0], [0, 1], [1, 0], [1, 1]]] * 2)),
        ("shaped(-1, 4)", torch.arange(32).reshape(8, 4)),
        ("first(1)", torch.arange(16)[None]),
        ("copied(input_ids)", torch.arange(32).reshape(2, 16)),
    ],
)
def test_a_text_calls_a_function_with_sizes(arguments: ForwardArguments, form: str, expected: torch.Tensor) -> None:
    assert torch.equal(make_input(form, "input_ids", arguments), expected)


@pytest.mark.parametrize("form", ["floating(batch)", "floats(no_such_field)", "floats(batch ** 2)"])
def test_a_text_that_means_nothing_is_no_input(arguments: ForwardArguments, form: str) -> None:
    said = f"'input_ids' of the family's inputs is not to be made by {form!r}"
    with pytest.raises(ValueError, match=re.escape(said)):
        make_input(form, "input_ids", arguments)


@pytest.mark.parametrize("form", FORMS)
def test_the_texts_of_families_call_functions_that_there_are(form: str) -> None:
    call: Any = ast.parse(form, mode="eval").body
    assert call.func.id in {*_FORMS, *_CHANGES}


def test_every_function_is_called() -> None:
    assert {form.partition("(")[0] for form in FORMS} == {*_FORMS, *_CHANGES}
