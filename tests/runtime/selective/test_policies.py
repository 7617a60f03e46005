"""The names in `save`: their operators, and names that keep nothing."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery import SurgeryError
from ckpt_surgery.runtime.selective.policies import VOCABULARY, Selector, choices_of, draws, role_of

pytestmark = [pytest.mark.both, pytest.mark.torch]

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("text", "operator", "every"),
    [
        ("attention", aten._scaled_dot_product_flash_attention_for_cpu.default, 1),
        ("matmul", aten.addmm.default, 1),
        ("matmul:2", aten.mm.default, 2),
        ("router", aten.topk.default, 1),
        ("collectives", torch.ops._c10d_functional.all_reduce.default, 1),
        ("norm", aten.native_layer_norm.default, 1),
        ("conv", aten.convolution.default, 1),
        ("random", aten.rand.default, 1),
        ("random", aten.bernoulli_.float, 1),
        ("aten.mm", aten.mm.default, 1),
        ("aten::mm", aten.mm.default, 1),
        ("aten::mm:3", aten.mm.default, 3),
        ("aten.add.Tensor", aten.add.Tensor, 1),
    ],
)
def test_a_name_keeps_its_operators(text: str, operator: Any, every: int) -> None:
    (choice,) = choices_of([text])
    assert choice.every == every
    role = role_of(operator, [choice])
    assert role is not None
    assert role.choices == (choice,)


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("matmul", aten.bmm.default),
        ("matmul", aten.mm.out),
        ("aten.add.Tensor", aten.add.Scalar),
        ("random", aten.rrelu_with_noise.default),
        ("router", aten.mm.default),
    ],
    ids=str,
)
def test_a_name_keeps_no_others(text: str, operator: Any) -> None:
    assert role_of(operator, choices_of([text])) is None


def test_every_operator_of_torch_in_the_vocabulary_is_there() -> None:
    names = [name for operators in VOCABULARY.values() for name in operators if name.startswith("aten::")]
    assert len(names) > 20
    assert [name for name in names if not hasattr(aten, name.removeprefix("aten::"))] == []
    packets = [getattr(aten, name.removeprefix("aten::")) for name in names]
    choices = choices_of(VOCABULARY)
    assert all(any(role_of(getattr(each, o), choices) for o in each.overloads()) for each in packets)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flash", r"save names 'flash': give attention, matmul, .*, or the name of an operator such as aten.mm"),
        ("", r"save names '': give attention"),
        ("matmul:0", r"save names 'matmul:0': give :2 for every second"),
        ("aten.mn", r"save names aten.mn, which is no operator of torch"),
        ("aten.topk.foo", r"the overloads of topk are default and values"),
        ("aten.linear", r"save names aten.linear, which is made of other operators"),
        ("aten.view", r"save names aten.view, which makes views"),
        ("aten.relu_", r"save names aten.relu_, which writes in place"),
    ],
)
def test_a_name_of_nothing_that_can_be_kept_is_refused(text: str, message: str) -> None:
    with pytest.raises(SurgeryError, match=message):
        choices_of(["attention", text])


def test_attention_without_dropout_draws_nothing() -> None:
    kernel = aten._scaled_dot_product_flash_attention.default
    q = torch.empty(1)
    assert not draws(kernel, (q, q, q), {})
    assert not draws(kernel, (q, q, q, 0.0), {})
    assert draws(kernel, (q, q, q, 0.1), {})
    assert draws(kernel, (q, q, q), {"dropout_p": 0.1})
    assert draws(aten.rand.default, ([2],), {})


def kept(text: str, *calls: tuple[Any, tuple[Any, ...]]) -> list[bool]:
    """Return those of the calls, operators with arguments, that a policy keeps."""
    choices, selector = choices_of([text]), Selector()
    roles = [(role_of(operator, choices), operator, args) for operator, args in calls]
    return [role is not None and bool(selector.chosen(operator, role, args, {})) for role, operator, args in roles]


def test_every_second_begins_with_the_first() -> None:
    mm = (aten.mm.default, ())
    assert kept("matmul:2", mm, mm, mm, mm, mm) == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((4, 6, 6), True), ((4, 6, 5), True), ((4, 6, 7), False), ((2, 6, 6), False)],
    ids=["as they were", "without a sink", "with other columns", "with other rows"],
)
def test_eager_attention_is_the_product_with_what_a_softmax_made(weights: tuple[int, ...], expected: bool) -> None:
    product = (aten.bmm.default, (torch.empty(weights), torch.empty(1)))
    softmax = (aten._softmax.default, (torch.empty(2, 2, 6, 6), -1, False))
    assert kept("attention", product, softmax, product, product) == [False, False, expected, False]
