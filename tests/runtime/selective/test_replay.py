"""A policy's results are replayed without kernel, node and dispatch mode, and gradients stay equal to the bit."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.nn import functional

from ckpt_surgery import SurgeryError, verify, wrap_blocks
from ckpt_surgery.runtime.selective import kept_results, replay
from tests.runtime.selective.test_kept_results import KERNEL, counts, equal, without
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

WIDTH, ROWS, STEPS = 16, 5, 4
"""The first two steps record how to replay calls; later ones replay them."""
PRODUCTS = {"aten::mm", "aten::addmm"}


class Part(nn.Module):
    """A block that runs `body` on its modules."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norm, self.conv = nn.LayerNorm(WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + self.body(self, hidden_states)

    def heads(self, hidden_states: Tensor) -> Tensor:
        return (hidden_states @ self.weight).view(*hidden_states.shape[:-1], 2, -1).transpose(1, 2)


class Squared(torch.autograd.Function):
    """A product in an autograd function, where torch takes no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        product = rows @ weight
        ctx.save_for_backward(rows, weight, product)
        return product**2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        rows, weight, product = ctx.saved_tensors
        gradient = 2 * product * gradients[0]
        return gradient @ weight.mT, (rows.mT @ gradient).sum(0)


def feed_forward(part: Any, rows: Tensor) -> Any:
    return part.down(functional.gelu(part.up(part.norm(rows))))


def attention(part: Any, rows: Tensor) -> Any:
    heads = part.heads(rows)
    return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)


def eager_attention(part: Any, rows: Tensor) -> Any:
    heads = part.heads(rows)
    return ((heads @ heads.mT).softmax(-1) @ heads).transpose(1, 2).flatten(2)


def functions(part: Any, rows: Tensor) -> Any:
    summed = functional.linear(rows, part.weight) + torch.einsum("bld,de->ble", rows, part.weight)
    return summed + torch.addmm(rows[0], rows[0], part.weight) + part.up(rows[0, 0])[:WIDTH]


def function_of_autograd(part: Any, rows: Tensor) -> Any:
    return Squared.apply(rows, part.weight)  # type: ignore[no-untyped-call]


def forces(part: Any, rows: Tensor) -> Any:
    energy = (part.down(part.up(rows).tanh()) ** 2).sum()
    return torch.autograd.grad(energy, rows, create_graph=True)[0]


def without_gradient(part: Any, rows: Tensor) -> Any:
    with torch.no_grad():
        scale = part.up(rows)[..., :WIDTH]
    return part.down(part.up(rows)) * scale


def dropped(part: Any, rows: Tensor) -> Any:
    heads = part.heads(rows)
    attended = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3)
    return functional.dropout(part.down(part.up(rows)), 0.2) + attended.transpose(1, 2).flatten(2)


def routed(part: Any, rows: Tensor) -> Any:
    weights, chosen = (rows @ part.weight).softmax(-1).topk(2)
    return (functional.one_hot(chosen, WIDTH) * weights[..., None]).sum(-2) * part.down(part.up(rows))


def convolved(part: Any, rows: Tensor) -> Any:
    return part.conv(rows.mT).mT


def vectorised(part: Any, rows: Tensor) -> Any:
    return torch.func.vmap(lambda row: part.down(part.up(row)))(rows)


def branched(part: Any, rows: Tensor) -> Any:
    return torch.cond(torch.tensor(True), torch.sin, torch.cos, (part.down(part.up(rows)),))


SAVES: Mapping[Callable[..., Tensor], list[str]] = {
    feed_forward: ["matmul:2", "norm"],
    attention: ["attention"],
    eager_attention: ["attention"],
    functions: ["matmul"],
    function_of_autograd: ["matmul"],
    forces: ["matmul"],
    without_gradient: ["matmul:2"],
    dropped: ["attention", "matmul"],
    routed: ["router", "matmul"],
    convolved: ["conv"],
    vectorised: ["matmul:2"],
    branched: ["matmul"],
}


def trained(model: nn.Module, *, autocast: bool = False, twice: bool = False) -> Iterator[Tensor | None]:
    """Return each step's loss and gradients of input and parameters."""
    for seed in range(STEPS):
        torch.manual_seed(seed)
        model.zero_grad()
        rows = torch.randn(2, ROWS, WIDTH, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(rows) + (model(rows * 1.5) if twice else 0)
        loss = output.float().square().sum()
        loss.backward(retain_graph=twice)
        if twice:
            loss.backward()
        yield from (loss.detach(), rows.grad, *(parameter.grad for parameter in model.parameters()))


def same(ours: nn.Module, theirs: nn.Module, **how: bool) -> bool:
    pairs = zip(trained(ours, **how), trained(theirs, **how), strict=True)
    return all((a is b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


HOW: Mapping[str, dict[str, bool]] = {
    "plain": {},
    "autocast": {"autocast": True},
    "two forwards, two backwards": {"twice": True},
}


@pytest.mark.parametrize(
    ("body", "how"),
    [
        pytest.param(body, options, id=f"{body.__name__}, {name}")
        for body in SAVES
        for name, options in HOW.items()
        # its backward multiplies what autocast has cast with what it has not; torch.cond compiles for seconds
        if not ((options and body is branched) or (body is function_of_autograd and "autocast" in options))
    ],
)
def test_steps_are_those_without_checkpointing_bit_for_bit(body: Callable[..., Tensor], how: dict[str, bool]) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Part(body), Part(body)).train()
    model = copy.deepcopy(plain)
    wrap_blocks(model, save=SAVES[body], blocks=Part, self_check="always" if how else "never")
    assert same(model, plain, **how)


def test_a_recompute_runs_no_kernel_and_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(2)
    wrap_blocks(model, save=["attention", "matmul:2"], self_check="never")
    _, first = counts(model)
    for _ in range(2):
        counts(model)
    for mode in (kept_results._KeepingMode, kept_results._GivingMode):
        monkeypatch.setattr(mode, "__torch_dispatch__", None)
    _, backward = counts(model)
    assert backward[KERNEL] == 0
    assert sum(backward[name] for name in PRODUCTS) == sum(first[name] for name in PRODUCTS)


def test_other_values_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    again = replay.Replay.again
    monkeypatch.setattr(replay.Replay, "again", lambda plan, made, *call: again(plan, [1.5 * t for t in made], *call))
    model = llama(2)
    wrap_blocks(model, save="matmul", self_check="never")
    assert not equal(model, without(llama(2)))
    assert verify(model, tokens(), modes=["non_reentrant"]).status == "failed"


def test_saved_in_another_order_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    replay_of = replay.Replay.of
    monkeypatch.setattr(replay.Replay, "of", lambda saved, *call: replay_of(saved[::-1], *call))
    model = nn.Sequential(Part(feed_forward), Part(feed_forward)).train()
    wrap_blocks(model, save="matmul", blocks=Part)
    with pytest.raises(SurgeryError, match="gave a different result than its forward"):
        list(trained(model))


def test_what_is_kept_must_not_be_written_in_later_steps_either() -> None:
    writing: list[bool] = []

    def body(part: Any, rows: Tensor) -> Any:
        wide = part.up(rows)
        return part.down(wide.relu_() if writing else wide.relu())

    model = nn.Sequential(Part(body), Part(body)).train()
    wrap_blocks(model, save="matmul", blocks=Part, self_check="never")
    list(trained(model))
    writing.append(True)
    with pytest.raises(SurgeryError, match=r"save keeps what aten\.addmm makes in Part 0, and something writes that"):
        list(trained(model))


def test_nobody_else_sees_a_policy() -> None:
    linear, layer = functional.linear, nn.Linear(4, 4)
    model = llama(2)
    wrap_blocks(model, save=["attention", "matmul"])
    for _ in range(3):
        model(**tokens()).loss.backward()
    assert functional.linear is linear
    assert "forward" not in {*vars(layer), *vars(model.model.layers[0].self_attn.q_proj)}
    before = torch.linspace(0, 1, 4, requires_grad=True)
    assert torch.equal(layer(before), functional.linear(before, layer.weight, layer.bias))


def test_nothing_lives_longer_than_its_step() -> None:
    model = llama(2)
    wrap_blocks(model, save=["attention", "matmul"])
    for _ in range(3):
        model(**tokens()).loss.backward()
    gc.collect()
    alive = sum(isinstance(each, Tensor) for each in gc.get_objects())
    for _ in range(3):
        model(**tokens()).loss.backward()
    gc.collect()
    assert sum(isinstance(each, Tensor) for each in gc.get_objects()) == alive
