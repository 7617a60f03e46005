"""The fused loss beside F.linear and F.cross_entropy: values, gradients, dtypes, memory, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from ckpt_surgery.errors import OptionError, OptionTypeError
from ckpt_surgery.long_sequences import fused_loss
from ckpt_surgery.long_sequences.fused_loss import fused_linear_cross_entropy
from ckpt_surgery.measure.meter import Meter
from tests.long_sequences.plain_loss import TOKENS, WIDTH, Products, apart, case, gradients, plain, ready

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("chunk_size", [1, 5, TOKENS, None])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_gradients_are_those_of_the_plain_loss(
    smoothing: float, reduction: Any, bias: bool, softcap: float | None, chunk_size: int | None
) -> None:
    hidden, weight, labels, shift = case(bias=bias)
    options: dict[str, Any] = {"reduction": reduction, "softcap": softcap, "label_smoothing": smoothing}
    ours = fused_linear_cross_entropy(hidden, weight, labels, shift, chunk_size=chunk_size, **options)
    theirs = plain(hidden, weight, labels, shift, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert apart(gradients(ours, hidden, weight, shift), gradients(theirs, hidden, weight, shift)) < 1e-12


@pytest.mark.parametrize("frozen", [set(), {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}])
def test_a_gradient_that_nobody_needs_is_not_computed(frozen: set[int]) -> None:
    hidden, weight, labels, bias = case()
    inputs = [hidden, weight, bias]
    for place in frozen:
        inputs[place].requires_grad_(False)  # type: ignore[union-attr]
    with Products() as forward:
        loss = fused_linear_cross_entropy(hidden, weight, labels, bias, chunk_size=6)
    expected = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    assert forward.count == 2
    if not expected:
        assert not loss.requires_grad
        return
    with Products() as backward:
        ours = gradients(loss, *expected)
    assert backward.count == 2 * (1 + (0 not in frozen) + (1 not in frozen))
    assert apart(ours, gradients(plain(hidden, weight, labels, bias), *expected)) < 1e-12


def test_autograd_checks_gradients_and_sees_a_softcap_without_its_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels, bias = case()
    assert bias is not None

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return fused_linear_cross_entropy(hidden, weight, labels, bias, softcap=1.5, reduction="none", chunk_size=5)

    assert torch.autograd.gradcheck(loss, (hidden, weight, bias))
    right: Any = fused_loss._of_logits
    monkeypatch.setattr(fused_loss, "_of_logits", lambda *given: right(*given[:-1], None))
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(loss, (hidden, weight, bias))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_narrow_dtypes_are_as_close_as_can_be_and_the_loss_is_float32(
    dtype: torch.dtype, close: float, softcap: float | None
) -> None:
    hidden, weight, labels, bias = case(dtype)
    wide = [None if tensor is None else ready(tensor.detach(), torch.float64) for tensor in (hidden, weight, bias)]
    exact = plain(wide[0], wide[1], labels, wide[2], softcap=softcap)  # type: ignore[arg-type]
    loss = fused_linear_cross_entropy(hidden, weight, labels, bias, chunk_size=5, softcap=softcap)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=close)
    ours = gradients(loss, hidden, weight, bias)
    assert [gradient.dtype for gradient in ours] == [dtype] * 3
    assert apart([gradient.double() for gradient in ours], gradients(exact, *wide)) < close


def test_weight_gradients_are_summed_in_float32_for_bfloat16_loses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.ones(400, 1, dtype=torch.bfloat16), ready(torch.zeros(2, 1), torch.bfloat16)
    labels = torch.zeros(400, dtype=torch.long)

    def gradient() -> float:
        loss = fused_linear_cross_entropy(hidden, weight, labels, reduction="sum", chunk_size=1)
        return float(gradients(loss, weight)[0][1])

    assert gradient() == pytest.approx(200, rel=2e-3)
    monkeypatch.setattr(fused_loss, "_at_least_float32", lambda dtype: dtype)
    assert gradient() < 150


def test_a_gradient_scaler_scales_before_gradients_round_to_float16() -> None:
    hidden, weight, labels, _ = case(torch.float16, bias=False)
    scale = 2.0**16

    def step(factor: float) -> Tensor:
        loss = fused_linear_cross_entropy(hidden, weight, labels, reduction="sum") * 1e-9
        return gradients(loss * factor, hidden)[0].float() / factor

    exact = gradients(plain(hidden.double(), weight.double(), labels, reduction="sum") * 1e-9, hidden)[0]
    assert exact.count_nonzero() == 0  # what the gradient is once it was rounded without the scale
    wide = ready(hidden.detach(), torch.float64)
    exact = gradients(plain(wide, weight.double(), labels, reduction="sum") * 1e-9, wide)[0]
    assert apart([step(scale).double()], [exact]) < 1e-2
    assert step(1).count_nonzero() == 0


def test_under_autocast_gradients_are_in_the_dtype_of_the_inputs() -> None:
    hidden, weight, labels, bias = case(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        with Products() as forward:
            ours = fused_linear_cross_entropy(hidden, weight, labels, bias, chunk_size=5)
        theirs = plain(hidden, weight, labels, bias)
    with Products() as backward:
        actual = gradients(ours, hidden, weight, bias)
    assert forward.dtypes == backward.dtypes == {torch.bfloat16}
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    assert apart(actual, gradients(theirs, hidden, weight, bias)) < 1e-2


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("tokens", [0, 4])
def test_where_no_label_counts_loss_and_gradients_are_zero(reduction: Any, tokens: int) -> None:
    hidden, weight, labels, bias = case()
    labels = torch.full_like(labels, -100)
    loss = fused_linear_cross_entropy(hidden[:, :tokens], weight, labels[:, :tokens], bias, reduction=reduction)
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(loss, hidden, weight, bias))
    assert math.isnan(plain(hidden, weight, labels, bias).item())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_an_ignored_index_may_lie_in_the_vocabulary(dtype: torch.dtype) -> None:
    hidden, weight, labels, bias = case()
    labels = labels.clamp(min=3)
    ours = fused_linear_cross_entropy(hidden, weight, labels.to(dtype), bias, ignore_index=3)
    theirs = plain(hidden, weight, labels, bias, ignore_index=3)
    assert ours.item() != pytest.approx(plain(hidden, weight, labels, bias).item())
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert apart(gradients(ours, hidden, weight), gradients(theirs, hidden, weight)) < 1e-12


def test_hidden_states_of_any_layout_and_of_one_token_will_do() -> None:
    hidden, weight, labels, _ = case()
    strided, turned = hidden.transpose(0, 1), labels.transpose(0, 1)
    ours = fused_linear_cross_entropy(strided, weight, turned, chunk_size=5)
    assert apart(gradients(ours, hidden, weight), gradients(plain(hidden, weight, labels), hidden, weight)) < 1e-12
    scalar = fused_linear_cross_entropy(hidden[0, 1], weight, labels[0, 1], reduction="none")
    assert scalar.shape == ()
    assert scalar.item() == pytest.approx(plain(hidden[:1, 1], weight, labels[:1, 1]).item())


def test_a_graph_that_is_kept_gives_the_same_gradients_again() -> None:
    hidden, weight, labels, _ = case()
    loss = fused_linear_cross_entropy(hidden, weight, labels) * 3
    first, second = (torch.autograd.grad(loss, (hidden, weight), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_the_second_derivative_passes_the_check_of_autograd(softcap: float | None) -> None:
    hidden, weight, labels, bias = case()

    def loss(states: Tensor, head: Tensor, shift: Tensor) -> Tensor:
        return fused_linear_cross_entropy(states, head, labels, shift, softcap=softcap, label_smoothing=0.1)

    assert bias is not None
    assert torch.autograd.gradgradcheck(loss, (hidden, weight, bias))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            {"weight": torch.zeros(0, WIDTH)},
            OptionError,
            "weight has to be (vocabulary, hidden size), and whole, not (0, 6)",
        ),
        ({"hidden": torch.zeros(3, 4, 7)}, OptionError, "hidden has to end in the 6 columns of weight"),
        ({"labels": torch.zeros(4, 3, dtype=torch.long)}, OptionError, "labels have to be (3, 4)"),
        ({"bias": torch.zeros(5)}, OptionError, "bias has to be (17,)"),
        ({"chunk_size": 0}, OptionError, "chunk_size is a number of tokens of at least 1, not 0"),
        ({"reduction": "average"}, OptionError, "not 'average'"),
        ({"softcap": 0.0}, OptionError, "softcap has to be above 0"),
        ({"softcap": math.inf}, OptionError, "and finite, not inf"),
        ({"prefer": "cce"}, OptionError, "prefer is \"liger\" or None, not 'cce'"),
        ({"labels": torch.zeros(3, 4)}, OptionTypeError, "labels are class indices of an integer dtype"),
        ({"hidden": torch.zeros(3, 4, 6, dtype=torch.long)}, OptionTypeError, "have to be floating point"),
        ({"bias": torch.zeros(17, dtype=torch.bfloat16)}, OptionTypeError, "one dtype outside autocast"),
        ({"hidden": 1}, OptionTypeError, "hidden is of type int: give a tensor"),
        ({"label_smoothing": 1.5}, OptionError, "label_smoothing is a share from 0 to 1, not 1.5"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: dict[str, Any], error: type[Exception], said: str
) -> None:
    hidden, weight, labels, bias = case(torch.float32)
    with pytest.raises(error) as caught:
        fused_linear_cross_entropy(**{"hidden": hidden, "weight": weight, "labels": labels, "bias": bias, **change})
    assert said in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_two_chunks_of_logits_live_at_most_and_none_until_the_backward(
    dtype: torch.dtype, softcap: float | None
) -> None:
    tokens, width, vocabulary, chunk = 512, 4, 1000, 32
    hidden, weight = (ready(torch.randn(rows, width), dtype) for rows in (tokens, vocabulary))
    labels = torch.randint(0, vocabulary, (tokens,))

    def measured(loss: Any, **options: Any) -> tuple[int, int, int]:
        hidden.grad = weight.grad = None
        with Meter() as meter, Products() as products:
            value = loss(hidden, weight, labels, softcap=softcap, **options)
            meter.start_backward(value)
            value.backward()
        return products.largest, max(held for _, held in meter.timeline().points), meter.kept_bytes

    largest, peak, kept = measured(fused_linear_cross_entropy, chunk_size=chunk)
    assert largest == chunk * vocabulary
    assert peak < 2 * 4 * chunk * vocabulary + 8 * width * (tokens + vocabulary)
    assert kept < 16 * tokens
    assert measured(fused_linear_cross_entropy, chunk_size=tokens)[0] == tokens * vocabulary
    largest, plain_peak, kept = measured(plain)
    assert largest == tokens * vocabulary
    assert plain_peak >= 2 * 4 * tokens * vocabulary > 10 * peak
    assert kept >= 4 * tokens * vocabulary


@pytest.mark.parametrize(
    ("tokens", "width", "vocabulary", "rows"),
    [(40, 8, 50, 40), (3000, 32, 4000, 256), (3000, 32, 100, 960), (3000, 80, 100, 1024)],
)
def test_a_chunk_is_by_default_as_large_as_hidden_of_256_to_1024_rows(
    tokens: int, width: int, vocabulary: int, rows: int
) -> None:
    hidden, weight = torch.zeros(tokens, width), torch.zeros(vocabulary, width)
    with torch.no_grad(), Products() as products:
        fused_linear_cross_entropy(hidden, weight, torch.zeros(tokens, dtype=torch.long))
    assert products.largest == max(rows * vocabulary, hidden.numel())
    assert products.count == -(-tokens // rows)
