"""The fused loss in use: on split devices, with Liger, compiled, checkpointed, in models and on real ranks."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ckpt_surgery import wrap_blocks
from ckpt_surgery.long_sequences import fused_loss
from ckpt_surgery.long_sequences.fused_loss import fused_linear_cross_entropy
from ckpt_surgery.tiny import model_classes, tiny_model
from tests.long_sequences.fused_loss_script import SIZE
from tests.long_sequences.plain_loss import VOCABULARY, WIDTH, Products, apart, case, gradients, plain
from tests.rank_cases import Results, case_results

pytestmark = pytest.mark.torch
DEVICES = [("cpu:0", "cpu:1"), ("cpu", "meta"), ("meta", "cpu"), ("meta:0", "meta:1")]


@pytest.mark.parametrize(("here", "there"), DEVICES)
@pytest.mark.parametrize("labels_at", ["here", "there"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_gradient_is_on_the_device_and_in_the_dtype_of_its_input(
    here: str, there: str, labels_at: str, dtype: torch.dtype
) -> None:
    with FakeTensorMode():
        hidden = torch.randn(3, 4, WIDTH, device=here, dtype=dtype, requires_grad=True)
        weight = torch.randn(VOCABULARY, WIDTH, device=there, dtype=dtype, requires_grad=True)
        bias = torch.randn(VOCABULARY, device=there, dtype=dtype, requires_grad=True)
        labels = torch.zeros(3, 4, dtype=torch.long, device=here if labels_at == "here" else there)
        for reduction in ("mean", "none"):
            loss = fused_linear_cross_entropy(
                hidden, weight, labels, bias, chunk_size=5, softcap=2.0, reduction=reduction
            )
            assert (loss.device, loss.dtype) == (hidden.device, torch.float32)
            for tensor, gradient in zip((hidden, weight, bias), gradients_on(loss, hidden, weight, bias), strict=True):
                assert (gradient.device, gradient.dtype, gradient.shape) == (tensor.device, dtype, tensor.shape)


def gradients_on(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs, torch.ones_like(loss))


def test_autocast_is_that_of_the_device_of_the_head() -> None:
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        labels = torch.zeros(4, dtype=torch.long)
        for here, there, dtypes in [("cpu", "meta", {torch.float32}), ("meta", "cpu", {torch.bfloat16})]:
            hidden, weight = torch.randn(4, WIDTH, device=here), torch.randn(VOCABULARY, WIDTH, device=there)
            with Products() as products:
                fused_linear_cross_entropy(hidden, weight, labels)
            assert products.dtypes == dtypes


# --- Liger --------------------------------------------------------------------------------------------------


def stand_in(called: list[inspect.BoundArguments], *, accumulates: bool = True) -> types.ModuleType:
    """Make a module with the signature of Liger 0.7.0 (or 0.6.1) that computes the plain loss."""

    def liger_fused_linear_cross_entropy(
        input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
    ) -> Tensor:
        given = {"ignore_index": ignore_index, "reduction": reduction, "softcap": softcap, "accum_dtype": accum_dtype}
        called.append(signature.bind(input, weight, target, bias, **given))
        assert input.ndim == 2
        assert target.dtype == torch.int64
        return plain(input, weight, target, bias, reduction=reduction, softcap=softcap, ignore_index=ignore_index)

    signature = inspect.signature(liger_fused_linear_cross_entropy)
    if not accumulates:
        kept = [parameter for name, parameter in signature.parameters.items() if name != "accum_dtype"]
        setattr(liger_fused_linear_cross_entropy, "__signature__", signature.replace(parameters=kept))  # noqa: B010
    module = types.ModuleType("liger_kernel.transformers.functional")
    setattr(module, "liger_fused_linear_cross_entropy", liger_fused_linear_cross_entropy)  # noqa: B010
    return module


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> list[inspect.BoundArguments]:
    """Put a stand-in for Liger, which needs a GPU, on the CPU; return its calls."""
    called: list[inspect.BoundArguments] = []
    put(monkeypatch, stand_in(called))
    monkeypatch.setattr(fused_loss, "_LIGER_DEVICES", {"cpu"})
    return called


def put(monkeypatch: pytest.MonkeyPatch, functional: types.ModuleType | None) -> None:
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.functional", functional)


@pytest.mark.parametrize(
    "options", [{}, {"reduction": "sum", "softcap": 3.0}, {"ignore_index": 0}], ids=["default", "sum", "ignored 0"]
)
def test_liger_is_called_with_everything_where_it_is_preferred(
    liger: list[inspect.BoundArguments], options: dict[str, Any]
) -> None:
    hidden, weight, labels, bias = case(torch.float32)
    labels = labels.clamp(min=options.get("ignore_index", -100))
    theirs = fused_linear_cross_entropy(hidden, weight, labels.int(), bias, prefer="liger", **options)
    (call,) = liger
    assert call.arguments["weight"] is weight
    assert call.arguments["bias"] is bias
    assert call.arguments["accum_dtype"] == torch.float32
    ours = fused_linear_cross_entropy(hidden, weight, labels, bias, **options)
    assert len(liger) == 1
    torch.testing.assert_close(theirs, ours)
    assert apart(gradients(theirs, hidden, weight, bias), gradients(ours, hidden, weight, bias)) < 1e-5


@pytest.mark.parametrize("frozen_head", [False, True])
def test_liger_is_left_alone_where_the_head_alone_wants_gradients(
    liger: list[inspect.BoundArguments], frozen_head: bool
) -> None:
    hidden, weight, labels, bias = case(torch.float32)
    weight.requires_grad_(not frozen_head)
    assert bias is not None
    fused_linear_cross_entropy(hidden.detach(), weight, labels, bias.detach(), prefer="liger")
    assert len(liger) == frozen_head


@pytest.mark.parametrize(
    ("dtype", "autocast", "options", "tokens"),
    [
        (torch.float16, False, {}, 3),
        (torch.float32, True, {}, 3),
        (torch.float64, False, {}, 3),
        (torch.float32, False, {"reduction": "none"}, 3),
        (torch.float32, False, {"label_smoothing": 0.1}, 3),
        (torch.float32, False, {}, 0),
    ],
    ids=["float16", "autocast to float16", "float64", "losses of tokens", "smoothed", "no tokens"],
)
def test_liger_is_left_alone_where_it_is_not_as_good(
    liger: list[inspect.BoundArguments], dtype: torch.dtype, autocast: bool, options: dict[str, Any], tokens: int
) -> None:
    hidden, weight, labels, _ = case(dtype)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        fused_linear_cross_entropy(hidden[:tokens], weight, labels[:tokens], prefer="liger", **options)
    assert not liger


@pytest.mark.parametrize("elsewhere", ["hidden", "weight", "labels", "bias", None])
def test_liger_is_left_alone_where_anything_is_on_another_device(
    liger: list[inspect.BoundArguments], elsewhere: str | None
) -> None:
    def on(name: str) -> str:
        return "cpu:1" if name == elsewhere else "cpu:0"

    with FakeTensorMode():
        hidden = torch.randn(4, WIDTH, device=on("hidden"), requires_grad=True)
        weight = torch.randn(VOCABULARY, WIDTH, device=on("weight"), requires_grad=True)
        bias = torch.randn(VOCABULARY, device=on("bias"), requires_grad=True)
        labels = torch.zeros(4, dtype=torch.long, device=on("labels"))
        loss = fused_linear_cross_entropy(hidden, weight, labels, bias, prefer="liger")
        assert bool(liger) == (elsewhere is None)
        for tensor, gradient in zip((hidden, weight, bias), gradients_on(loss, hidden, weight, bias), strict=True):
            assert gradient.device == tensor.device


@pytest.mark.parametrize("installed", [False, True])
def test_without_a_liger_that_sums_in_float32_ours_is_used(
    liger: list[inspect.BoundArguments], monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    put(monkeypatch, stand_in(liger, accumulates=False) if installed else None)
    hidden, weight, labels, _ = case(torch.float32)
    loss = fused_linear_cross_entropy(hidden, weight, labels, prefer="liger")
    assert not liger
    torch.testing.assert_close(loss, plain(hidden, weight, labels))


# --- compiled, checkpointed, in models ----------------------------------------------------------------------


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_it_compiles_without_a_break(reduction: Any, autocast: bool) -> None:
    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None) -> Tensor:
        options: dict[str, Any] = {"chunk_size": 5, "softcap": 2.0, "reduction": reduction}
        return fused_linear_cross_entropy(hidden, weight, labels, bias, **options)

    torch._dynamo.reset()
    hidden, weight, labels, bias = case(torch.float32)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        theirs, ours = compiled(hidden, weight, labels, bias), loss(hidden, weight, labels, bias)
    torch.testing.assert_close(theirs, ours)
    assert apart(gradients(theirs, hidden, weight, bias), gradients(ours, hidden, weight, bias)) < 1e-6


@pytest.mark.both
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_in_wrapped_blocks_gradients_are_those_of_its_loss(name: str) -> None:
    tiny = tiny_model(model_classes()[name].load())
    model, ids = tiny.model.train(), tiny.inputs["input_ids"]
    labels = ids.clone()
    labels[:, :3] = -100
    softcap = getattr(model.config, "final_logit_softcapping", None)
    assert (softcap is not None) == (name == "Gemma2ForCausalLM")
    parameters = list(model.parameters())
    torch.manual_seed(0)  # for the same dropout in both forwards
    theirs = torch.autograd.grad(model(input_ids=ids, labels=labels).loss, parameters)
    torch.manual_seed(0)
    with wrap_blocks(model):
        hidden = model.model(input_ids=ids).last_hidden_state
        loss = fused_linear_cross_entropy(
            hidden[:, :-1], model.lm_head.weight, labels[:, 1:], chunk_size=7, softcap=softcap
        )
        loss.backward()  # type: ignore[no-untyped-call]
    assert apart([parameter.grad for parameter in parameters if parameter.grad is not None], list(theirs)) < 1e-4


# --- real ranks ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.long_sequences.fused_loss_script", tmp_path_factory.mktemp("fused_loss"), SIZE)


INSIDE = [
    "sharded",
    "sharded head, gathered and averaged",
    "tied",
    "own head, unused looked for",
    "one rank without labels",
    "loss in a checkpoint",
]


@pytest.mark.parametrize("name", INSIDE)
def test_ranks_with_other_labels_get_the_mean_of_their_gradients(results: Results, name: str) -> None:
    for rank in results[name]:
        assert rank["error"] == ""
        assert rank["difference"] < 1e-6


def test_ranks_that_do_not_meet_keep_their_own_gradients(results: Results) -> None:
    assert all(rank["difference"] > 1e-2 for rank in results["alone"])


def test_a_loss_computed_outside_the_wrapped_module_is_refused_by_ddp(results: Results) -> None:
    for rank in results["loss outside"]:
        assert "mark a variable ready only once" in rank["error"]


def test_a_sharded_head_is_refused_and_gathering_it_alone_would_be_wrong(results: Results) -> None:
    for rank in results["sharded head"]:
        assert "one is a DTensor: call this in the forward of the module that FSDP2 holds" in rank["error"]
    assert all(rank["difference"] > 1e-2 for rank in results["sharded head, gathered"])
