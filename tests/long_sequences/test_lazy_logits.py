"""Lazy logits: the operations on the way to a loss that are followed; everything else gets real logits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ckpt_surgery import SurgeryError
from ckpt_surgery.long_sequences.lazy_logits import LazyLogits
from ckpt_surgery.long_sequences.logits_formula import FusedBy, HeadCall, LogitsFormula, LossState
from ckpt_surgery.torch_names import LinearCrossEntropyOptions

pytestmark = [
    pytest.mark.torch,
    pytest.mark.both,
    pytest.mark.filterwarnings("ignore:a model makes its logits for"),
]

VOCABULARY, WIDTH, TOKENS = 11, 5, 6
ROUNDING = 1e-12
HAS_FUSED_LOSS = LinearCrossEntropyOptions is not None
"""Whether torch has a fused loss with weights of classes."""
Use = Callable[[Tensor], Tensor]


def targets(*shape: int) -> Tensor:
    drawn = torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(2))
    drawn.view(-1)[0] = -100
    return drawn


def flat(logits: Tensor) -> Tensor:
    return logits.reshape(-1, VOCABULARY)


def capped(logits: Tensor) -> Tensor:
    return torch.tanh(logits / 3.0) * 3.0


def smoothed(logits: Tensor) -> Tensor:
    """Smooth labels as transformers' LabelSmoother does."""
    shifted, labels = logits[..., :-1, :].contiguous(), targets(2, 5)[..., None]
    negated = -F.log_softmax(shifted, dim=-1)
    chosen = negated.gather(dim=-1, index=labels.clamp(min=0))
    spread = negated.sum(dim=-1, keepdim=True, dtype=torch.float64)
    for each in (chosen, spread):
        each.masked_fill_(labels.eq(-100), 0.0)
    return 0.9 * chosen.sum() / 9 + 0.1 * spread.sum() / (9 * negated.shape[-1])


def with_z_loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(flat(logits), targets(12)) + 0.1 * logits.logsumexp(-1).pow(2).mean()


def chosen_of(logits: Tensor) -> Tensor:
    index = targets(2, TOKENS, 1).clamp(min=0)
    return logits.log_softmax(-1).double().gather(2, index).square().sum()


MASK = torch.tensor([[True, False, True, True, False, True], [False, True, True, True, True, True]])
OTHER = torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64)
FOLLOWED: dict[str, Use] = {
    "a plain loss": lambda x: F.cross_entropy(flat(x), targets(12)),
    "a sum": lambda x: F.cross_entropy(flat(x), targets(12), reduction="sum"),
    "losses of tokens": lambda x: (F.cross_entropy(flat(x), targets(12), reduction="none") ** 2).sum(),
    "another ignored label": lambda x: F.cross_entropy(flat(x), targets(12).clamp(min=0), ignore_index=3),
    "a loss module": lambda x: nn.CrossEntropyLoss()(x.view(-1, VOCABULARY), targets(12)),
    "a shift": lambda x: F.cross_entropy(flat(x[..., :-1, :].contiguous()), targets(10)),
    "the last tokens": lambda x: F.cross_entropy(flat(x[:, -2:, :]), targets(4)),
    "a mask": lambda x: F.cross_entropy(x[MASK], targets(9)),
    "one sequence": lambda x: F.cross_entropy(x[1], targets(6)),
    "a cast": lambda x: F.cross_entropy(flat(x.double().to(x.device)), targets(12)),
    "a scale": lambda x: F.cross_entropy(flat(x * 0.25 / 2), targets(12)),
    "a softcap": lambda x: F.cross_entropy(flat(capped(x)), targets(12)),
    "weights of classes": lambda x: F.cross_entropy(flat(x), targets(12), OTHER.abs()),
    "weights of classes, summed": lambda x: F.cross_entropy(flat(x / 2), targets(12), OTHER.abs(), reduction="sum"),
    "weights for each token": lambda x: (
        F.cross_entropy(flat(x), targets(12), OTHER.abs(), reduction="none") ** 2
    ).sum(),
    "a bias and a scale": lambda x: F.cross_entropy(flat((x + OTHER) * 0.5), targets(12)),
    "label smoothing": lambda x: F.cross_entropy(flat(x), targets(12), label_smoothing=0.1),
    "smoothed losses of tokens": lambda x: (
        F.cross_entropy(flat(capped(x)), targets(12), reduction="none", label_smoothing=0.3) ** 2
    ).sum(),
    "label smoothing by hand": smoothed,
    "a z-loss after a softcap": lambda x: with_z_loss(capped(x + OTHER)),
    "one entry of a log-softmax": chosen_of,
    "means of a log-softmax": lambda x: (x.log_softmax(2)[:, 1:] * 0.5).mean(-1, keepdim=True).square().sum(),
    "a negative log-likelihood": lambda x: F.nll_loss(F.log_softmax(flat(x), 1), targets(12)),
}
MADE: dict[str, Use] = {
    "logsumexp of tokens": lambda x: x.logsumexp(1).pow(2).mean(),
    "entries of logits": lambda x: x.gather(-1, targets(2, TOKENS, 1).clamp(min=0)).square().sum(),
    "two entries of a log-softmax": lambda x: x.log_softmax(-1).gather(-1, targets(2, TOKENS, 2).clamp(min=0)).sum(),
    "a log-softmax in half precision": lambda x: x.log_softmax(-1, dtype=torch.bfloat16).sum(-1).double().sum(),
    "a likelihood that is not negated": lambda x: F.nll_loss(-F.log_softmax(flat(x), 1), targets(12)),
    "a log-softmax of tokens": lambda x: F.nll_loss(flat(x).log_softmax(0), targets(12)),
    "cross-entropy of a log-softmax": lambda x: F.cross_entropy(flat(x).log_softmax(-1) * 2, targets(12)),
    "label smoothing with weights": lambda x: F.cross_entropy(flat(x), targets(12), OTHER.abs(), label_smoothing=0.1),
    "weights of classes after a softcap": lambda x: F.cross_entropy(flat(capped(x)), targets(12), OTHER.abs()),
    "probabilities": lambda x: F.cross_entropy(flat(x), F.softmax(x.detach().reshape(-1, VOCABULARY), -1)),
    "a part of the vocabulary": lambda x: x[..., 3].sum() + x[:, :, 2:4].sum(),
    "a loss over a part of the vocabulary": lambda x: F.cross_entropy(x[0, :, :WIDTH], targets(6).clamp(max=4)),
    "a scale after a softcap": lambda x: F.cross_entropy(flat(capped(x) * 2), targets(12)),
    "a bias after a softcap": lambda x: F.cross_entropy(flat(capped(x) + OTHER), targets(12)),
    "a scale for each entry": lambda x: F.cross_entropy(flat(x * OTHER), targets(12)),
    "a column of its own": lambda x: F.cross_entropy(x.transpose(1, 2), targets(2, 6)),
    "written into": lambda x: F.cross_entropy(flat(_written(x)), targets(12)),
    "seen, then a loss": lambda x: x.max() + F.cross_entropy(flat(x), targets(12)),
    "a softmax by hand": lambda x: -F.log_softmax(x, -1)[..., 0].mean(),
}


def _written(logits: Tensor) -> Tensor:
    logits[:, :, 1:3] = -9.0
    return logits


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("name", "fused"), [*((n, True) for n in FOLLOWED), *((n, False) for n in MADE)])
def test_loss_and_gradients_are_those_of_real_logits(name: str, fused: bool, biased: bool) -> None:
    use = (FOLLOWED if fused else MADE)[name]
    told = LossState("a model")
    real = outcome(use, biased, lambda hidden, weight, bias: F.linear(hidden, weight, bias))
    lazy = outcome(use, biased, lambda hidden, weight, bias: lazily(hidden, weight, bias, told))
    for ours, theirs in zip(lazy, real, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=ROUNDING, atol=ROUNDING)
    way = FusedBy.TORCH if "weights" in name else FusedBy.OURS
    assert ((set(told.fused), set(told.made)) == ({way}, set())) is (fused and (way is FusedBy.OURS or HAS_FUSED_LOSS))


def squared(logits: Tensor) -> Tensor:
    result: Tensor = Squared.apply(logits)  # type: ignore[no-untyped-call]
    return result


@pytest.mark.parametrize("use", [smoothed, with_z_loss, chosen_of, FOLLOWED["a softcap"], squared])
def test_second_derivatives_are_those_of_real_logits(use: Use) -> None:
    def twice(head: Callable[..., Tensor]) -> list[Tensor]:
        hidden, weight, bias = given()
        start = hidden * weight.sum()  # as with tied embeddings
        (first,) = torch.autograd.grad(use(head(start, weight, bias)), hidden, create_graph=True)
        return list(torch.autograd.grad(first.square().sum(), (hidden, weight, bias)))

    real = twice(lambda hidden, weight, bias: F.linear(hidden, weight, bias))
    ours = twice(lambda hidden, weight, bias: lazily(hidden, weight, bias, LossState("a model")))
    for one, other in zip(ours, real, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def outcome(use: Use, biased: bool, head: Callable[..., Tensor]) -> list[Tensor]:
    """Return the loss and the gradients of hidden states, weight and bias."""
    hidden, weight, bias = given()
    loss = use(head(hidden, weight, bias if biased else None))
    torch.autograd.backward(loss)
    return [loss.detach(), *(t.grad for t in (hidden, weight, bias) if t.grad is not None)]


def given() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    hidden, weight, bias = (torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes)
    return hidden, weight, bias


def lazily(hidden: Tensor, weight: Tensor, bias: Tensor | None, told: LossState) -> LazyLogits:
    return LazyLogits.of(LogitsFormula(HeadCall(hidden, weight, bias, None, told), (), hidden, bias, hidden.dtype))


def lazy() -> tuple[LazyLogits, Tensor, LossState]:
    """Return lazy logits, the real ones, and what is reported of them."""
    told = LossState("a model")
    hidden, weight, _ = given()
    return lazily(hidden, weight, None, told), F.linear(hidden, weight), told


@pytest.mark.parametrize("why", ["torch has no such loss", "half precision", "other weights"])
def test_where_torch_would_make_logits_the_models_own_code_does(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = LossState("a model")
    dtype = torch.bfloat16 if why == "half precision" else torch.float64
    hidden, weight, _ = (tensor.detach().to(dtype).requires_grad_() for tensor in given())
    classes = OTHER.abs().to(torch.float32 if why == "other weights" else dtype)
    if why == "torch has no such loss":
        monkeypatch.setattr("ckpt_surgery.long_sequences.logits_formula.LinearCrossEntropyOptions", None)
    with contextlib.suppress(RuntimeError):  # the weights have to be of the dtype of the logits
        F.cross_entropy(flat(lazily(hidden, weight, None, told)), targets(12), classes)
    assert (told.fused, told.made) == ({}, {"cross_entropy": 1})


@pytest.mark.skipif(not HAS_FUSED_LOSS, reason="torch 2.11 has no linear_cross_entropy")
def test_a_second_derivative_that_torch_has_not_is_refused() -> None:
    hidden, weight, _ = given()
    loss = F.cross_entropy(flat(lazily(hidden, weight, None, LossState("a model"))), targets(12), OTHER.abs())
    with pytest.raises(SurgeryError, match="has no second derivative: leave out create_graph=True"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_questions_about_them_make_nothing() -> None:
    logits, real, told = lazy()
    assert logits.shape == real.shape
    assert (logits.size(-1), logits.dim(), len(logits), logits.numel()) == (11, 3, 2, 132)
    assert (logits.dtype, logits.device, logits.requires_grad) == (real.dtype, real.device, True)
    assert isinstance(logits, Tensor)
    assert logits._base is None  # FSDP2 asks for it on every output
    assert (told.fused, told.made) == ({}, {})


def test_values_are_the_bits_of_the_real_ones() -> None:
    logits, real, _ = lazy()
    assert torch.equal(logits.float() / 3, real.float() / 3)
    assert torch.equal(torch.stack([logits, logits]), torch.stack([real, real]))
    assert logits.tolist() == real.tolist()
    assert repr(logits.detach()) == repr(real.detach())


def test_after_a_fused_loss_they_can_still_be_looked_at() -> None:
    logits, real, told = lazy()
    F.cross_entropy(flat(logits), targets(12))
    with torch.no_grad():
        assert torch.equal(logits.argmax(-1), real.argmax(-1))
    assert (told.fused, told.made) == ({FusedBy.OURS: 1}, {})


def test_what_changed_since_the_forward_is_an_error() -> None:
    logits, _, _ = lazy()
    with torch.no_grad():
        logits._formula.call.weight.add_(1.0)
    with pytest.raises(SurgeryError, match="written to since the forward"):
        logits.argmax(-1)


class Squared(torch.autograd.Function):
    """A loss whose inputs bypass `__torch_function__`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return (logits * logits).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (logits,) = ctx.saved_tensors
        doubled: Tensor = 2 * logits
        return gradient * doubled


@pytest.mark.parametrize("cast", [False, True])
def test_a_function_of_autograd_gets_their_gradient(cast: bool) -> None:
    def use(logits: Tensor) -> Tensor:
        given = logits[:, 1:] * 2 if cast else logits
        squared: Tensor = Squared.apply(given)  # type: ignore[no-untyped-call]
        return squared

    real = outcome(use, True, lambda hidden, weight, bias: F.linear(hidden, weight, bias))
    ours = outcome(use, True, lambda hidden, weight, bias: lazily(hidden, weight, bias, LossState("a model")))
    for one, other in zip(ours, real, strict=True):
        torch.testing.assert_close(one, other, rtol=ROUNDING, atol=ROUNDING)


def test_a_hook_from_before_the_loss_gets_its_gradient() -> None:
    logits, _, told = lazy()
    seen: list[Tensor] = []
    logits.register_hook(seen.append)  # type: ignore[no-untyped-call]
    torch.autograd.backward(F.cross_entropy(flat(logits), targets(12)))
    assert [gradient.shape for gradient in seen] == [logits.shape]
    assert (told.fused, told.made) == ({}, {"register_hook": 1})


def test_after_a_fused_loss_the_gradient_of_what_is_done_besides_is_given() -> None:
    logits, _, _ = lazy()
    F.cross_entropy(flat(logits), targets(12))
    (gradient,) = torch.autograd.grad(logits.square().sum(), logits)
    torch.testing.assert_close(gradient, 2 * logits.detach())


def _seen(gradient: Tensor) -> None:
    """Look at a gradient."""


@pytest.mark.parametrize(
    "wait",
    [
        lambda loss, logits: logits.register_hook(_seen),
        lambda loss, logits: logits.retain_grad(),
        lambda loss, logits: torch.autograd.grad(loss, logits),
        lambda loss, logits: torch.autograd.grad(outputs=loss, inputs=[logits], allow_unused=True),
    ],
)
def test_waiting_for_a_gradient_that_never_comes_raises(wait: Callable[[Tensor, LazyLogits], Any]) -> None:
    logits, _, told = lazy()
    loss = F.cross_entropy(flat(logits), targets(12))
    with pytest.raises(SurgeryError, match="no gradient comes to them: undo the fused loss to see it"):
        wait(loss, logits)
    assert (told.fused, told.made) == ({FusedBy.OURS: 1}, {})


def test_what_writes_below_autograd_is_refused() -> None:
    logits, _, _ = lazy()
    with (
        torch.no_grad(),
        torch._C.DisableTorchFunctionSubclass(),
        pytest.raises(SurgeryError, match="into logits that were not made"),
    ):
        logits.zero_()
