"""The names in `save`: their operators, and names that keep nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.policies import POLICIES
from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.planning.mixtures import names_for
from ckpt_surgery.runtime.selective.policies import (
    VOCABULARY,
    OperatorRole,
    Selector,
    choices_of,
    draws,
    in_words,
)

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
        ("norm", aten.native_group_norm.default, 1),
        ("norm", aten._fused_rms_norm.default, 1),
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
    role = OperatorRole.of(operator, [choice])
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
    assert OperatorRole.of(operator, choices_of([text])) is None


def test_every_operator_of_torch_in_the_vocabulary_is_there() -> None:
    names = [name for operators in VOCABULARY.values() for name in operators if name.startswith("aten::")]
    assert len(names) > 20
    assert [name for name in names if not hasattr(aten, name.removeprefix("aten::"))] == []
    packets = [getattr(aten, name.removeprefix("aten::")) for name in names]
    choices = choices_of(VOCABULARY)
    assert all(any(OperatorRole.of(getattr(each, o), choices) for o in each.overloads()) for each in packets)


PAGE = "docs/how-to/live-model.md"
NOT_PLANNED = {"router", "collectives", "random"}
"""Names whose results are kept for other reasons than the seconds of their recompute."""
NOT_MEASURED = {"collectives"}
"""Names of what runs on several ranks only."""


def unlisted(vocabulary: Mapping[str, Collection[str]]) -> list[str]:
    """List the places that lack a name of `save`."""
    page = (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8")
    table = page.partition("| name | what is kept |")[2].partition("\n\n")[0]
    rows = set(re.findall(r'`"([a-z]+)"`', "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE))))
    cli = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text(encoding="utf-8")
    (help_of_run,) = re.findall(r"^\| `--save \[BLOCKS=\]NAME` \|(.*)\|$", cli, re.MULTILINE)
    (option,) = re.findall(r"^ {8}save: (.*?):2", wrap_blocks.__doc__ or "", re.DOTALL | re.MULTILINE)
    planned = {name: names_for(map(in_words, operators)) for name, operators in vocabulary.items()}
    listed_in = {
        PAGE: rows,
        "the help of `run --save`": set(re.findall(r"[a-z]+", help_of_run.partition("operators:")[2])),
        "the docstring of wrap_blocks": set(re.findall(r'"([a-z]+)"', option)),
        "planning/mixtures.py or NOT_PLANNED": {n for n, offered in planned.items() if n in offered} | NOT_PLANNED,
        "benchmarks/policies.py, or NOT_MEASURED here": {*POLICIES} | NOT_MEASURED,
    }
    return [
        f"{name} is not in {place}" for place, names in listed_in.items() for name in vocabulary if name not in names
    ]


def test_every_name_is_listed_where_names_are() -> None:
    assert unlisted(VOCABULARY) == []


def test_a_name_that_is_listed_nowhere_is_seen() -> None:
    assert len(unlisted({"scale": {"aten::mul"}})) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flash", r"save names 'flash': give attention, matmul, .*, or the name of an operator such as aten.mm"),
        ("", r"save names '': give attention"),
        ("matmul:0", r"save names 'matmul:0': give :2 for every second"),
        ("aten.mn", r"save names aten.mn, which is not an operator of torch"),
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
    roles = [(OperatorRole.of(operator, choices), operator, args) for operator, args in calls]
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
